import { createRandom, hexOf, mixHash } from './hash.ts';
import { chooseTools, type Tool, type ToolUse } from './choose-tools.ts';
import { countTokens, firstTokens } from './tokens.ts';
import { valueForSchema } from './value-for-schema.ts';
import { nextCommand } from './run-commands.ts';
import { naturalTokenCount, writeText, type Prose } from './write-text.ts';

/** A request to the model, independent of any wire format. */
export type GenerateRequest = {
  /** The hash of everything that determines the answer: model, conversation, seed. */
  hash: number;
  lastUserText: string;
  /** The conversation ends with a tool's result. The model then answers with text, so that it does not call forever. */
  endsWithToolResult: boolean;
  /** How many results of tools follow the user's message. Only the wire formats that agents are tested with count them. */
  toolResults?: number;
  /** The request body as it arrived, for `reflect`. */
  rawBody: string;
  promptTokens: number;
  choiceCount: number;
  tokensMax: number | undefined;
  stop: readonly string[];
  tools: readonly Tool[];
  toolUse: ToolUse;
  parallelToolUse: boolean;
  /** JSON was requested: with this schema, or (null) in any shape. */
  jsonSchema: unknown;
  /** Thinking was requested. The wire format decides how thoughts are shown. */
  think?: boolean;
};

/** Whether the instructions ask for a JSON object. A model without a JSON mode follows them. */
export const asksForJson = (instructions: string): boolean => /\bJSON object and nothing else\b/i.test(instructions);

/** How the model behaves, as set by its name or by a fault. */
export type Behaviour = {
  /** `agent`: runs the commands in backticks of the user's message, one per turn, with the shell tool that it is offered. */
  manner: 'write' | 'echo' | 'reflect' | 'agent';
  /** The exact number of tokens, instead of a natural length. */
  tokens?: number | undefined;
  /** Answers with this text (for faults that need certain content), in one piece if `inOnePiece`. */
  text?: string;
  inOnePiece?: boolean;
  contentFilter?: boolean;
  /** Thinks without being asked to. */
  think?: boolean;
  /** Half of the prompt was read from a cache. */
  cached?: boolean;
  /** Writes a few words before it calls a tool. */
  preamble?: boolean;
  /** Declines to answer. */
  refuse?: boolean;
  omitUsage?: boolean;
  answersAs?: string;
};

export type FinishReason = 'stop' | 'length' | 'tool_calls' | 'content_filter' | 'refusal';
export type ToolCall = { id: string; name: string; kind: Tool['kind']; input: string };
/** `tokens` includes the thoughts; the `text` of a refusal is the model's explanation instead of an answer. */
export type Generation = {
  text: string | null;
  toolCalls: readonly ToolCall[];
  finish: FinishReason;
  tokens: number;
  thought?: { text: string; tokens: number };
};
export type Answer = {
  generations: readonly Generation[];
  promptTokens: number;
  cachedTokens: number;
  completionTokens: number;
  reasoningTokens: number;
};

/** Pure: the same request and behaviour always result in the same answer. */
export function generate(request: GenerateRequest, behaviour: Behaviour): Answer {
  const generations: Generation[] = [];
  let completionTokens = 0;
  let reasoningTokens = 0;
  const think = (request.think === true || behaviour.think === true) && behaviour.refuse !== true;
  for (let index = 0; index < request.choiceCount; index++) {
    const hash = index === 0 ? request.hash : mixHash(request.hash, index);
    const generation = generateOne(request, behaviour, hash);
    const generated = think ? withThought(generation, hash) : generation;
    completionTokens += generated.tokens;
    reasoningTokens += generated.thought?.tokens ?? 0;
    generations.push(generated);
  }
  const { promptTokens } = request;
  const cachedTokens = behaviour.cached === true ? Math.floor(promptTokens / 2) : 0;
  return { generations, promptTokens, cachedTokens, completionTokens, reasoningTokens };
}

/** The one generation of an answer that has one choice. */
export function onlyGeneration({ generations: [generation] }: Answer): Generation {
  return generation ?? wholeText('');
}

/** Thoughts have their own random sequence, so that thinking does not change the answer. */
function withThought(generation: Generation, hash: number): Generation {
  const thought = writeText(createRandom(mixHash(hash, -2)), 24);
  return { ...generation, thought, tokens: generation.tokens + thought.tokens };
}

function generateOne(request: GenerateRequest, behaviour: Behaviour, hash: number): Generation {
  if (behaviour.text !== undefined) return wholeText(behaviour.text);
  // Not limited by max_tokens and stop: the received text is returned byte for byte.
  if (behaviour.manner === 'reflect') return wholeText(request.rawBody);
  if (behaviour.manner === 'echo') return limitText(request.lastUserText, request);

  if (behaviour.manner === 'agent') {
    const next = nextCommand(request);
    if (next !== null) return callTool(next.tool, JSON.stringify(next.input), hash);
  }
  if (behaviour.refuse === true) return { ...wholeText(refusalText), finish: 'refusal' };
  const random = createRandom(hash);
  if (behaviour.contentFilter !== true) {
    const tools = chooseTools(request, random);
    if (tools.length > 0) return callTools(tools, hash, random, behaviour.preamble === true);
    if (request.jsonSchema !== undefined) {
      return limitText(JSON.stringify(valueForSchema(request.jsonSchema ?? anyJson, random)), request);
    }
  }
  const natural = naturalTokenCount(random);
  const target = Math.min(
    behaviour.tokens ?? natural,
    request.tokensMax === undefined ? Infinity : request.tokensMax + 1,
  );
  const written = writeText(random, target);
  const whole = behaviour.tokens === undefined ? written : beginningOf(written, target);
  const generation = limitText(whole.text, request, whole.tokens);
  return behaviour.contentFilter === true ? filtered(generation) : generation;
}

const refusalText = 'I cannot help with that request.';

const anyJson = {
  type: 'object',
  properties: {
    answer: { type: 'string' },
    confidence: { type: 'number', minimum: 0, maximum: 1 },
    items: { type: 'array', items: { type: 'string' } },
  },
  required: ['answer', 'confidence', 'items'],
};

function callTool({ name, kind }: Tool, input: string, hash: number): Generation {
  const toolCalls = [{ id: `call_${hexOf(mixHash(hash, 0), 24)}`, name, kind, input }];
  return { text: null, toolCalls, finish: 'tool_calls', tokens: countTokens(name) + countTokens(input) };
}

function callTools(tools: readonly Tool[], hash: number, random: () => number, preamble: boolean): Generation {
  let tokens = 0;
  const toolCalls = tools.map((tool, index) => {
    const input =
      tool.kind === 'custom'
        ? writeText(random, 8).text
        : JSON.stringify(valueForSchema(asObject(tool.parameters), random));
    tokens += countTokens(tool.name) + countTokens(input);
    return { id: `call_${hexOf(mixHash(hash, index), 24)}`, name: tool.name, kind: tool.kind, input };
  });
  if (!preamble) return { text: null, toolCalls, finish: 'tool_calls', tokens };
  const text = `I will use ${toolCalls.map(({ name }) => name).join(' and ')}.`;
  return { text, toolCalls, finish: 'tool_calls', tokens: tokens + countTokens(text) };
}

/** Arguments are always an object, even if the tool declares no parameters or no type. */
function asObject(parameters: unknown): unknown {
  return typeof parameters === 'object' && parameters !== null ? { type: 'object', ...parameters } : { type: 'object' };
}

function wholeText(text: string): Generation {
  return { text, toolCalls: [], finish: 'stop', tokens: countTokens(text) };
}

/** The first `count` tokens of a text that has at least that many. */
function beginningOf({ text, tokens }: Prose, count: number): Prose {
  return tokens === count ? { text, tokens } : { text: firstTokens(text, count), tokens: count };
}

/** `textTokens`: the number of tokens of the text, if known. */
function limitText(text: string, { stop, tokensMax }: GenerateRequest, textTokens?: number): Generation {
  let end = text.length;
  for (const sequence of stop) {
    const at = sequence === '' ? -1 : text.indexOf(sequence);
    if (at !== -1 && at < end) end = at;
  }
  const kept = end < text.length ? text.slice(0, end) : text;
  const tokens = kept === text && textTokens !== undefined ? textTokens : countTokens(kept);
  if (tokensMax === undefined || tokens <= tokensMax) return { text: kept, toolCalls: [], finish: 'stop', tokens };
  return { text: firstTokens(kept, tokensMax), toolCalls: [], finish: 'length', tokens: tokensMax };
}

function filtered({ text, tokens }: Generation): Generation {
  const kept = Math.floor(tokens / 2);
  return { text: firstTokens(text ?? '', kept), toolCalls: [], finish: 'content_filter', tokens: kept };
}
