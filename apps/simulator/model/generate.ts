import { createRandom, hexOf, mixHash } from './hash.ts';
import { chooseTools, type Tool, type ToolUse } from './choose-tools.ts';
import { countTokens, firstTokens } from './tokens.ts';
import { valueForSchema } from './value-for-schema.ts';
import { naturalTokenCount, writeText } from './write-text.ts';

/** What is asked of the model, in no wire format's terms. */
export type GenerateRequest = {
  /** Of everything that decides the answer: model, conversation, seed. */
  hash: number;
  lastUserText: string;
  /** The conversation ends with the result of a tool: the model answers in words, or it would call for ever. */
  endsWithToolResult: boolean;
  /** The request body as it arrived, for `reflect`. */
  rawBody: string;
  promptTokens: number;
  choiceCount: number;
  tokensMax: number | undefined;
  stop: readonly string[];
  tools: readonly Tool[];
  toolUse: ToolUse;
  parallelToolUse: boolean;
  /** Asked for JSON: of this schema, or (null) of any shape. */
  jsonSchema: unknown;
};

/** How the model behaves, chosen by the model's name or by a fault. */
export type Behaviour = {
  manner: 'write' | 'echo' | 'reflect';
  /** Exactly so many tokens instead of a natural length. */
  tokens?: number | undefined;
  /** This text, whatever was asked (faults that need a certain content); streamed in one piece when `inOnePiece`. */
  text?: string;
  inOnePiece?: boolean;
  contentFilter?: boolean;
  omitUsage?: boolean;
  answersAs?: string;
};

export type FinishReason = 'stop' | 'length' | 'tool_calls' | 'content_filter';
export type ToolCall = { id: string; name: string; kind: Tool['kind']; input: string };
export type Generation = { text: string | null; toolCalls: readonly ToolCall[]; finish: FinishReason; tokens: number };
export type Answer = { generations: readonly Generation[]; promptTokens: number; completionTokens: number };

/** Pure: the same request and behaviour give the same answer. */
export function generate(request: GenerateRequest, behaviour: Behaviour): Answer {
  const generations: Generation[] = [];
  let completionTokens = 0;
  for (let index = 0; index < request.choiceCount; index++) {
    const generation = generateOne(request, behaviour, index === 0 ? request.hash : mixHash(request.hash, index));
    completionTokens += generation.tokens;
    generations.push(generation);
  }
  return { generations, promptTokens: request.promptTokens, completionTokens };
}

function generateOne(request: GenerateRequest, behaviour: Behaviour, hash: number): Generation {
  if (behaviour.text !== undefined) return wholeText(behaviour.text);
  // Not even limited by max_tokens and stop: what was received comes back byte for byte.
  if (behaviour.manner === 'reflect') return wholeText(request.rawBody);
  if (behaviour.manner === 'echo') return limitText(request.lastUserText, request);

  const random = createRandom(hash);
  if (behaviour.contentFilter !== true) {
    const tools = chooseTools(request, random);
    if (tools.length > 0) return callTools(tools, hash, random);
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
  const generation = limitText(behaviour.tokens === undefined ? written : firstTokens(written, target), request);
  return behaviour.contentFilter === true ? filtered(generation) : generation;
}

const anyJson = {
  type: 'object',
  properties: {
    answer: { type: 'string' },
    confidence: { type: 'number', minimum: 0, maximum: 1 },
    items: { type: 'array', items: { type: 'string' } },
  },
  required: ['answer', 'confidence', 'items'],
};

function callTools(tools: readonly Tool[], hash: number, random: () => number): Generation {
  let tokens = 0;
  const toolCalls = tools.map((tool, index) => {
    const input =
      tool.kind === 'custom' ? writeText(random, 8) : JSON.stringify(valueForSchema(asObject(tool.parameters), random));
    tokens += countTokens(tool.name) + countTokens(input);
    return { id: `call_${hexOf(mixHash(hash, index), 24)}`, name: tool.name, kind: tool.kind, input };
  });
  return { text: null, toolCalls, finish: 'tool_calls', tokens };
}

/** Arguments are always an object, also when the tool declares no parameters or forgets to say so. */
function asObject(parameters: unknown): unknown {
  return typeof parameters === 'object' && parameters !== null ? { type: 'object', ...parameters } : { type: 'object' };
}

function wholeText(text: string): Generation {
  return { text, toolCalls: [], finish: 'stop', tokens: countTokens(text) };
}

function limitText(text: string, { stop, tokensMax }: GenerateRequest): Generation {
  let end = text.length;
  for (const sequence of stop) {
    const at = sequence === '' ? -1 : text.indexOf(sequence);
    if (at !== -1 && at < end) end = at;
  }
  const kept = end < text.length ? text.slice(0, end) : text;
  const tokens = countTokens(kept);
  if (tokensMax === undefined || tokens <= tokensMax) return { text: kept, toolCalls: [], finish: 'stop', tokens };
  return { text: firstTokens(kept, tokensMax), toolCalls: [], finish: 'length', tokens: tokensMax };
}

function filtered({ text, tokens }: Generation): Generation {
  const kept = Math.floor(tokens / 2);
  return { text: firstTokens(text ?? '', kept), toolCalls: [], finish: 'content_filter', tokens: kept };
}
