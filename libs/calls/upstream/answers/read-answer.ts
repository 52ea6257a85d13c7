import { isUtf8 } from 'node:buffer';
import { memberValue, scanElements, scanMembers } from '#libs/kernel/json/json-members.ts';
import type { Operation } from '#libs/providers/provider.ts';
import type { Usage } from '#libs/prices/usage.ts';
import { readMessageUsage } from '#libs/providers/messages/message-usage.ts';
import { asRecord, readAnswerUsage, readFinishReason, readResponseEnd } from './usage.ts';

/** The parts of a passed-on answer that the gateway has to know. */
export type AnswerParts = {
  /** Whether it is an error in spite of its status. */
  hasError: boolean;
  /** Whether it has the list that an answer of this operation has. */
  hasList: boolean;
  usage: Usage | null;
  model: string | null;
  finishReason: string | null;
  /** The ID of a stored object whose usage can be read later, such as a response that runs in the background. */
  objectId?: string;
};

/** The list that an answer of each operation must have, even with status 200; of a count, the number. */
export const answerLists: Readonly<Record<Operation, string>> = {
  chat: 'choices',
  completions: 'choices',
  embeddings: 'data',
  messages: 'content',
  count_tokens: 'input_tokens',
  models: 'data',
  responses: 'output',
  moderations: 'results',
  images: 'data',
};

type Body = Readonly<Record<string, unknown>>;

/** Where an answer has its usage and the reason why it ended. */
type Reader = {
  usage: (body: Body) => Usage | null;
  finishReason: (body: Body) => string | null;
  objectId?: (body: Body) => string | null;
};

const openAiReader: Reader = {
  usage: (body) => readAnswerUsage(body),
  finishReason: ({ choices }) => readFinishReason(choices),
};

/** The readers of operations whose answers are not like those of chat completions. */
const readers: Readonly<Partial<Record<Operation, Reader>>> = {
  messages: { usage: ({ usage }) => readMessageUsage(usage), finishReason: (body) => asText(body['stop_reason']) },
  responses: { usage: openAiReader.usage, finishReason: readResponseEnd, objectId: ({ id }) => asText(id) },
};

/** Returns the parts of a parsed answer. */
export function partsOf(operation: Operation, value: unknown): AnswerParts {
  const body = asRecord(value);
  const { error, model } = body;
  const found = body[answerLists[operation]];
  const reader = readers[operation] ?? openAiReader;
  const objectId = reader.objectId?.(body) ?? null;
  return {
    hasError: error !== undefined && error !== null,
    hasList: operation === 'count_tokens' ? typeof found === 'number' : Array.isArray(found),
    usage: reader.usage(body),
    model: asText(model),
    finishReason: reader.finishReason(body),
    ...(objectId === null ? {} : { objectId }),
  };
}

const asText = (value: unknown): string | null => (typeof value === 'string' ? value : null);

/**
 * Returns the parts of an answer's bytes. Only the few small members are parsed, because embeddings of 60 MB would take
 * several times as much memory as values. The structure is checked, but not the inside of numbers and literals. null
 * when it is not a JSON object, or one of these members is larger than `memberBytesMax`. `error`: its raw text.
 */
export function scanParts(
  operation: Operation,
  bytes: Buffer,
  memberBytesMax: number,
): (AnswerParts & { error: string | null }) | null {
  if (!isUtf8(bytes)) return null;
  try {
    const values = new Map<string, Buffer>();
    for (const { name, valueStart, valueEnd } of scanMembers(bytes)) {
      values.set(name, bytes.subarray(valueStart, valueEnd));
    }
    const textOf = (raw: Buffer | undefined): string | null => {
      if (raw !== undefined && raw.length > memberBytesMax) throw new RangeError('a member is too large to read');
      return raw?.toString() ?? null;
    };
    const parse = (name: string): unknown => JSON.parse(textOf(values.get(name)) ?? 'null');
    const list = answerLists[operation];
    const raw = values.get(list);
    const isList = raw?.[0] === 0x5b;
    const first = isList && list === 'choices' ? scanElements(raw).next().value : undefined;
    const reason = first?.[0] === 0x7b ? textOf(memberValue(first, 'finish_reason') ?? undefined) : null;
    const read = {
      error: parse('error'),
      usage: parse('usage'),
      model: parse('model'),
      service_tier: parse('service_tier'),
      stop_reason: parse('stop_reason'),
      status: parse('status'),
      incomplete_details: parse('incomplete_details'),
      id: parse('id'),
    };
    const parts = partsOf(operation, {
      ...read,
      [list]: isList ? [{ finish_reason: JSON.parse(reason ?? 'null') }] : null,
    });
    return { ...parts, error: textOf(values.get('error')) };
  } catch {
    return null;
  }
}
