import { isUtf8 } from 'node:buffer';
import { memberValue, scanElements, scanMembers } from '#libs/kernel/json/json-members.ts';
import type { Operation } from '#libs/providers/provider.ts';
import type { Usage } from '#libs/prices/usage.ts';
import { readGenerateFinish, readGenerateUsage } from '#libs/providers/generate-content/generate-usage.ts';
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

/** The list that an answer of each operation must have, even with status 200; '' for one that has none. */
export const answerLists: Readonly<Record<Operation, string>> = {
  chat: 'choices',
  completions: 'choices',
  embeddings: 'data',
  messages: 'content',
  count_tokens: '',
  generate_content: 'candidates',
  count_content_tokens: '',
  models: 'data',
  responses: 'output',
  moderations: 'results',
  images: 'data',
};

/** How an answer of an operation is read. `members`: the small top-level members that `read` needs in addition to the list. */
type AnswerReader = {
  members: readonly string[];
  read: (body: Body) => Omit<AnswerParts, 'hasError' | 'hasList'>;
  /** Whether an answer can be without its list. Absent: it cannot. */
  isWithoutList?: (body: Body) => boolean;
};

type Body = Readonly<Record<string, unknown>>;

const openAiReader: AnswerReader = {
  members: ['usage', 'model', 'service_tier'],
  read: (body) => ({
    usage: readAnswerUsage(body),
    model: asText(body['model']),
    finishReason: readFinishReason(body['choices']),
  }),
};

/** Reads an answer that is only a count of tokens. */
const countReader = (member: string): AnswerReader => ({
  members: [member],
  read: () => ({ usage: null, model: null, finishReason: null }),
  isWithoutList: (body) => typeof body[member] === 'number',
});

const readers: Readonly<Partial<Record<Operation, AnswerReader>>> = {
  messages: {
    members: ['usage', 'model', 'stop_reason'],
    read: ({ usage, model, stop_reason: reason }) => ({
      usage: readMessageUsage(usage),
      model: asText(model),
      finishReason: asText(reason),
    }),
  },
  responses: {
    members: ['usage', 'model', 'service_tier', 'status', 'incomplete_details', 'id'],
    read: (body) => ({
      ...openAiReader.read(body),
      finishReason: readResponseEnd(body),
      ...(typeof body['id'] === 'string' ? { objectId: body['id'] } : {}),
    }),
  },
  count_tokens: countReader('input_tokens'),
  generate_content: {
    members: ['usageMetadata', 'modelVersion', 'promptFeedback'],
    read: (body) => ({
      usage: readGenerateUsage(body),
      model: asText(body['modelVersion']),
      finishReason: readGenerateFinish(body),
    }),
    // A blocked prompt has no candidates.
    isWithoutList: (body) => asRecord(body['promptFeedback'])['blockReason'] !== undefined,
  },
  count_content_tokens: countReader('totalTokens'),
};

const readerFor = (operation: Operation): AnswerReader => readers[operation] ?? openAiReader;

/** Returns the parts of a parsed answer. */
export function partsOf(operation: Operation, value: unknown): AnswerParts {
  const body = asRecord(value);
  const { error } = body;
  const { read, isWithoutList } = readerFor(operation);
  return {
    hasError: error !== undefined && error !== null,
    hasList: Array.isArray(body[answerLists[operation]]) || isWithoutList?.(body) === true,
    ...read(body),
  };
}

const asText = (value: unknown): string | null => (typeof value === 'string' ? value : null);

/** The member of the first item of a list that has the finish reason. */
const finishMembers: Readonly<Record<string, string>> = { choices: 'finish_reason', candidates: 'finishReason' };

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
    const reasonName = finishMembers[list];
    const first = isList && reasonName !== undefined ? scanElements(raw).next().value : undefined;
    const found = first?.[0] === 0x7b && reasonName !== undefined ? memberValue(first, reasonName) : undefined;
    const members = ['error', ...readerFor(operation).members];
    const parts = partsOf(operation, {
      ...Object.fromEntries(members.map((name) => [name, parse(name)])),
      [list]: isList ? [reasonName === undefined ? {} : { [reasonName]: JSON.parse(textOf(found) ?? 'null') }] : null,
    });
    return { ...parts, error: textOf(values.get('error')) };
  } catch {
    return null;
  }
}
