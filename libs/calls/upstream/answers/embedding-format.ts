import { memberValue, scanElements, spliceMembers } from '#libs/kernel/json/json-members.ts';
import type { Call } from '#libs/providers/provider.ts';

/**
 * Returns the answer with its vectors in base64 (little-endian float32) if the request asked for that and the provider
 * sent numbers nevertheless; null when no change is needed. OpenAI's SDKs always ask for base64, and version 6 reads
 * lists of numbers as empty vectors. One vector is parsed at a time, because an answer can have 60 MB. Throws
 * GatewayError invalid_json like `scanElements`, and SyntaxError.
 */
export function withBase64Vectors(call: Call, body: Buffer): Buffer | null {
  if (!asksForBase64(call)) return null;
  const list = memberValue(body, 'data');
  if (list?.[0] !== 0x5b) return null;
  const pieces: Buffer[] = [];
  let isChanged = false;
  for (const item of scanElements(list)) {
    const changed = inBase64(item);
    isChanged ||= changed !== item;
    pieces.push(pieces.length === 0 ? openBracket : comma, changed);
  }
  if (!isChanged) return null;
  const start = list.byteOffset - body.byteOffset;
  const [before, after] = [body.subarray(0, start), body.subarray(start + list.length)];
  return Buffer.concat([before, ...(pieces.length === 0 ? [openBracket] : pieces), closeBracket, after]);
}

const openBracket = Buffer.from('[');
const comma = Buffer.from(',');
const closeBracket = Buffer.from(']');

/** Whether the vectors of the answer have to be in base64. */
export function asksForBase64({ operation, body, edits }: Call): boolean {
  if (operation !== 'embeddings') return false;
  const format =
    'encoding_format' in edits ? edits['encoding_format'] : memberValue(body, 'encoding_format')?.toString();
  return format === '"base64"';
}

/** Returns the item with its vector in base64; unchanged if it is not an object or has no list of numbers. */
function inBase64(item: Buffer): Buffer {
  const raw = item[0] === 0x7b ? memberValue(item, 'embedding') : undefined;
  if (raw?.[0] !== 0x5b) return item;
  const vector: unknown = JSON.parse(raw.toString());
  return isVector(vector) ? spliceMembers(item, { embedding: `"${toBase64(vector)}"` }) : item;
}

function isVector(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((each) => typeof each === 'number');
}

function toBase64(vector: readonly number[]): string {
  const bytes = Buffer.alloc(vector.length * 4);
  for (const [index, value] of vector.entries()) bytes.writeFloatLE(value, index * 4);
  return bytes.toString('base64');
}
