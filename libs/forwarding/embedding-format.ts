import { memberValue } from '#libs/kernel/json-members.ts';
import type { Call } from '#libs/providers/provider.ts';
import { asRecord } from './usage.ts';

/**
 * The answer with its vectors in base64 (little-endian float32) where the request asked for that and the provider sent
 * numbers all the same; null when there is nothing to change. OpenAI's SDKs ask for base64 unasked, and version 6 reads
 * lists of numbers as empty vectors (openai-semantics.md 4.3).
 */
export function withBase64Vectors(call: Call, body: Readonly<Record<string, unknown>>): Record<string, unknown> | null {
  const { data } = body;
  if (call.operation !== 'embeddings' || !Array.isArray(data) || !asksForBase64(call)) return null;
  if (!data.some((item) => isVector(asRecord(item)['embedding']))) return null;
  return {
    ...body,
    data: data.map((item: unknown) => {
      const record = asRecord(item);
      const vector = record['embedding'];
      return isVector(vector) ? { ...record, embedding: toBase64(vector) } : item;
    }),
  };
}

function asksForBase64({ body, edits }: Call): boolean {
  const format =
    'encoding_format' in edits ? edits['encoding_format'] : memberValue(body, 'encoding_format')?.toString();
  return format === '"base64"';
}

function isVector(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((each) => typeof each === 'number');
}

function toBase64(vector: readonly number[]): string {
  const bytes = Buffer.alloc(vector.length * 4);
  for (const [index, value] of vector.entries()) bytes.writeFloatLE(value, index * 4);
  return bytes.toString('base64');
}
