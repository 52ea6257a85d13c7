import type { JsonAnswer } from '#libs/calls/call.ts';
import type { Json } from './conformance-case.ts';

export type ToolCall = { id: string; type: string; function: { name: string; arguments: string } };

/** One choice's answer as a client has it in the end, whole or put together from chunks. */
export type Read = {
  text: string | null;
  refusal: string | null;
  toolCalls: ToolCall[];
  finishReason: string | null;
  contentBlocks: Json[] | null;
  usage: Json | null;
};

type Choice = {
  index: number;
  finish_reason: string | null;
  message?: Message;
  delta?: Message;
};
type Message = {
  role?: string;
  content?: string | null;
  refusal?: string | null;
  tool_calls?: (Partial<ToolCall> & { index?: number; function?: Partial<ToolCall['function']> })[];
  content_blocks?: (Json & { index?: number; delta?: Json })[] | null;
};
export type Chunk = {
  id: string;
  object: string;
  created: number;
  model: string;
  choices: Choice[];
  usage?: Json | null;
};
export type Completion = Omit<Chunk, 'choices'> & { choices: (Choice & { message: Message })[] };

export const toBodyObject = (answer: JsonAnswer): Completion => JSON.parse(answer.body.toString()) as Completion;

/** The first choice of a whole body. */
export function readCompletion(body: Completion): Read {
  const [choice] = body.choices;
  const { content, refusal, tool_calls: calls, content_blocks: blocks } = choice?.message ?? {};
  return {
    text: content ?? null,
    refusal: refusal ?? null,
    toolCalls: (calls ?? []) as ToolCall[],
    finishReason: choice?.finish_reason ?? null,
    contentBlocks: blocks ?? null,
    usage: body.usage ?? null,
  };
}

/** The first choice of a stream, put together as clients do: texts joined, tool calls by their index. */
export function readChunks(chunks: readonly Chunk[]): Read {
  const read: Read = { text: null, refusal: null, toolCalls: [], finishReason: null, contentBlocks: null, usage: null };
  const blocks = new Map<number, Record<string, unknown>>();
  for (const { choices, usage } of chunks) {
    read.usage = usage ?? read.usage;
    for (const { index, delta, finish_reason: reason } of choices) {
      if (index !== 0) continue;
      if (typeof delta?.content === 'string') read.text = (read.text ?? '') + delta.content;
      if (typeof delta?.refusal === 'string') read.refusal = (read.refusal ?? '') + delta.refusal;
      for (const call of delta?.tool_calls ?? []) addToolCall(read.toolCalls, call);
      for (const block of delta?.content_blocks ?? []) addBlock(blocks, block);
      read.finishReason = reason ?? read.finishReason;
    }
  }
  if (blocks.size > 0)
    read.contentBlocks = [...blocks].toSorted(([a], [b]) => a - b).map(([_index, block]) => ({ ...block }));
  return read;
}

function addToolCall(calls: ToolCall[], part: NonNullable<Message['tool_calls']>[number]): void {
  const { index = 0, id, type, function: named } = part;
  const call = (calls[index] ??= { id: '', type: '', function: { name: '', arguments: '' } });
  call.id += id ?? '';
  call.type ||= type ?? '';
  call.function.name += named?.name ?? '';
  call.function.arguments += named?.arguments ?? '';
}

/** `{index, delta: {text | thinking | signature | data}}`: members are joined, the type follows from which are there. */
function addBlock(
  blocks: Map<number, Record<string, unknown>>,
  { index = 0, delta = {} }: Json & { index?: number; delta?: Json },
): void {
  const block = blocks.get(index) ?? {};
  for (const [name, value] of Object.entries(delta)) {
    block[name] = typeof value === 'string' && name !== 'type' ? `${asText(block[name])}${value}` : value;
  }
  block['type'] ??= 'text' in block ? 'text' : 'data' in block ? 'redacted_thinking' : 'thinking';
  blocks.set(index, block);
}

const asText = (value: unknown): string => (typeof value === 'string' ? value : '');

/** What two ways to the same answer must agree on: arguments as values, "nothing said" as null. */
export function comparable({ text, refusal, toolCalls, ...rest }: Read): Json {
  return {
    ...rest,
    text: text || null,
    refusal: refusal || null,
    toolCalls: toolCalls.map(({ id, type, function: { name, arguments: input } }) => ({
      id,
      type,
      name,
      input: JSON.parse(input) as unknown,
    })),
  };
}

export function isUsageOnly(line: string): boolean {
  const { choices, usage } = JSON.parse(line) as Chunk;
  return choices.length === 0 && usage !== undefined && usage !== null;
}
