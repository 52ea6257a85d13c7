import { isDeepStrictEqual } from 'node:util';
import { operationOf } from '#libs/batches/batch/endpoint-operation.ts';

type Members = Readonly<Record<string, unknown>>;
const toMembers = (value: unknown): Members => (typeof value === 'object' && value !== null ? (value as Members) : {});
const toList = (value: unknown): Members[] => (Array.isArray(value) ? value.map(toMembers) : []);

/** The members of an answer that differ between two identical answers. */
const incidental: ReadonlySet<string> = new Set([
  'id',
  'object',
  'created',
  'created_at',
  'completed_at',
  'model',
  'usage',
  'system_fingerprint',
  'service_tier',
]);

/**
 * The content of an answer without its IDs, times, model and usage: texts, refusals and tool calls. JSON in a text is
 * its value, so that neither its spaces nor the order of its members matter.
 */
export function readContent(endpoint: string, body: unknown): unknown {
  const operation = operationOf(endpoint);
  const { choices, output } = toMembers(body);
  if (operation === 'chat') return toList(choices).map(({ message }) => messageContent(toMembers(message)));
  if (operation === 'completions') return toList(choices).map(({ text }) => readJson(text));
  if (operation === 'responses') return toList(output).flatMap(outputContent);
  return Object.fromEntries(Object.entries(toMembers(body)).filter(([name]) => !incidental.has(name)));
}

/** The content alone, unless there is a refusal or a call. */
function messageContent({ content, refusal, tool_calls: calls, function_call: called }: Members): unknown {
  const all = [...toList(calls).map((call) => call['function'] ?? call['custom']), ...(called == null ? [] : [called])];
  const value = readJson(content ?? null);
  if (refusal == null && all.length === 0) return value;
  return { content: value, refusal: refusal ?? null, calls: all.map((call) => callContent(toMembers(call))) };
}

const callContent = ({ name, arguments: given, input }: Members): Members => ({
  name,
  arguments: readJson(given ?? input),
});

function outputContent(item: Members): unknown[] {
  if (item['type'] === 'reasoning') return [];
  if (item['type'] !== 'message') return [{ type: item['type'], ...callContent(item) }];
  return toList(item['content']).map(({ text, refusal }) => (refusal == null ? readJson(text ?? null) : { refusal }));
}

/** The value of a text that is a JSON object or list; any other value unchanged. */
function readJson(value: unknown): unknown {
  if (typeof value !== 'string' || !/^\s*[[{]/.test(value)) return value;
  try {
    return JSON.parse(value) as unknown;
  } catch {
    return value;
  }
}

/** Whether two answers have the same content, and which share of their words they have in common. */
export function compareContents(one: unknown, other: unknown): { isEqual: boolean; similarity: number } {
  if (isDeepStrictEqual(one, other)) return { isEqual: true, similarity: 1 };
  return { isEqual: false, similarity: compareWords(toText(one), toText(other)) };
}

/** Longer texts are compared by their beginnings. */
const comparedCharsMax = 20_000;

/** The content as text, for comparisons and for a judge. */
export function toText(content: unknown, charsMax = comparedCharsMax): string {
  const only: unknown = Array.isArray(content) && content.length === 1 ? content[0] : content;
  return (typeof only === 'string' ? only : JSON.stringify(only)).slice(0, charsMax);
}

/** Dice's coefficient of the words of two texts, rounded to a thousandth. */
function compareWords(one: string, other: string): number {
  const [first, second] = [wordsOf(one), wordsOf(other)];
  const total = first.length + second.length;
  if (total === 0) return 0;
  const counts = new Map<string, number>();
  for (const word of first) counts.set(word, (counts.get(word) ?? 0) + 1);
  let common = 0;
  for (const word of second) {
    const left = counts.get(word) ?? 0;
    if (left === 0) continue;
    common += 1;
    counts.set(word, left - 1);
  }
  return Math.round((2_000 * common) / total) / 1_000;
}

const wordsOf = (text: string): readonly string[] => text.toLowerCase().match(/[\p{L}\p{N}]+|[^\s\p{L}\p{N}]/gu) ?? [];
