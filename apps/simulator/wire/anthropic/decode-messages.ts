import type { Tool, ToolUse } from '../../model/choose-tools.ts';
import { asksForJson, type GenerateRequest } from '../../model/generate.ts';
import { hashText } from '../../model/hash.ts';
import { countTokens } from '../../model/tokens.ts';
import type { Received } from '../wire-format.ts';
import { mergeTurns, refuse, type Block, type Message, type Turn } from './turns.ts';

type Parallel = { disable_parallel_tool_use?: boolean };
/** The members that are read here. */
type MessagesRequest = {
  max_tokens: number;
  messages: Message[];
  system?: string | { text: string }[] | null;
  metadata?: { user_id?: string | null } | null;
  stop_sequences?: string[] | null;
  temperature?: number | null;
  top_k?: number | null;
  tools?: { name: string; input_schema?: unknown }[] | null;
  tool_choice?: ({ type: 'auto' | 'any' | 'none' } & Parallel) | ({ type: 'tool'; name: string } & Parallel) | null;
  thinking?:
    | { type: 'enabled'; budget_tokens: number; display?: string | null }
    | { type: 'adaptive'; display?: string | null }
    | { type: 'disabled' }
    | null;
  output_config?: { format?: { schema?: unknown } | null } | null;
};

/** Members of the body, or for Vertex of the path. */
export type Addressed = { model: string; stream?: boolean };

/** A decoded request: the question for the model, and the members that only affect the format of the answer. */
export type Asked = {
  model: string;
  user: string | undefined;
  stream: boolean;
  /** Thoughts were requested without their text, so only the signature is shown. */
  omitThoughts: boolean;
  stop: readonly string[];
  ask: GenerateRequest;
};

const tokensPerMessage = 4;
const tokensPerMedia = 85;
// The tokens that the service adds to a prompt that has tools.
const tokensForTools = 346;

/** Reads a Messages request; throws Refusal (400) with the wording of api.anthropic.com. */
export function decodeMessages(received: Received, { model, stream }: Addressed): Asked {
  const request = received.json as MessagesRequest;
  const turns = mergeTurns(request.messages);
  checkThinking(request);
  const tools = readTools(request);
  const lastTurn = turns.at(-1);
  const stop = request.stop_sequences ?? [];
  return {
    model,
    user: request.metadata?.user_id ?? undefined,
    stream: stream === true,
    omitThoughts: request.thinking?.type !== 'disabled' && request.thinking?.display === 'omitted',
    stop,
    ask: {
      hash: hashText(`${model}\n${JSON.stringify(request.system ?? null)}\n${JSON.stringify(request.messages)}`),
      lastUserText: lastUserText(turns),
      endsWithToolResult: lastTurn?.content.some(({ type }) => type === 'tool_result') === true,
      rawBody: received.text,
      promptTokens: promptTokens(request, turns) + (tools.length === 0 ? 0 : tokensForTools),
      choiceCount: 1,
      tokensMax: request.max_tokens,
      stop,
      tools,
      toolUse: readToolChoice(request, tools),
      parallelToolUse: request.tool_choice?.disable_parallel_tool_use !== true,
      jsonSchema: request.output_config?.format?.schema ?? (asksForJson(systemText(request)) ? null : undefined),
      think: request.thinking?.type === 'enabled' || request.thinking?.type === 'adaptive',
    },
  };
}

function checkThinking({ thinking, max_tokens, temperature, tool_choice, top_k }: MessagesRequest): void {
  if (thinking?.type !== 'enabled' && thinking?.type !== 'adaptive') return;
  if (thinking.type === 'enabled' && thinking.budget_tokens >= max_tokens) {
    refuse('`max_tokens` must be greater than `thinking.budget_tokens`.');
  }
  if (typeof temperature === 'number' && temperature !== 1) {
    refuse('`temperature` may only be set to 1 when thinking is enabled.');
  }
  if (typeof top_k === 'number') refuse('`top_k` must be unset when thinking is enabled.');
  if (tool_choice?.type === 'any' || tool_choice?.type === 'tool') {
    refuse('Thinking may not be enabled when tool_choice forces tool use.');
  }
}

function readTools({ tools }: MessagesRequest): Tool[] {
  const read = (tools ?? []).flatMap((tool): Tool[] =>
    'input_schema' in tool ? [{ name: tool.name, kind: 'function', parameters: tool.input_schema }] : [],
  );
  const names = new Set(read.map(({ name }) => name));
  if (names.size < read.length) refuse('tools: Tool names must be unique.');
  return read;
}

function readToolChoice({ tools, tool_choice: choice }: MessagesRequest, read: readonly Tool[]): ToolUse {
  if (choice === undefined || choice === null) return 'auto';
  if ((tools ?? []).length === 0) refuse('tool_choice: tool_choice may only be specified while providing tools.');
  if (choice.type === 'any') return 'required';
  if (choice.type !== 'tool') return choice.type;
  if (!read.some(({ name }) => name === choice.name)) {
    refuse(`tool_choice.name: Tool '${choice.name}' not found in provided tools`);
  }
  return { name: choice.name };
}

function lastUserText(turns: readonly Turn[]): string {
  const spoken = turns.findLast(({ role, content }) => role === 'user' && content.some(({ type }) => type === 'text'));
  return spoken === undefined
    ? ''
    : spoken.content.flatMap((block) => (block.type === 'text' ? [block.text] : [])).join('\n');
}

const systemText = ({ system }: MessagesRequest): string =>
  typeof system === 'string' ? system : (system ?? []).map(({ text }) => text).join('\n');

function promptTokens(request: MessagesRequest, turns: readonly Turn[]): number {
  let tokens = countTokens(systemText(request));
  if (request.tools) tokens += countTokens(JSON.stringify(request.tools));
  for (const { content } of turns) {
    tokens += tokensPerMessage;
    for (const block of content) tokens += blockTokens(block);
  }
  return tokens;
}

function blockTokens(block: Block): number {
  if (block.type === 'text') return countTokens(block.text);
  if (block.type === 'image' || block.type === 'document') return tokensPerMedia;
  return countTokens(JSON.stringify(block));
}
