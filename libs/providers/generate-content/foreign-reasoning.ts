import { spliceMembers } from '#libs/kernel/json/json-members.ts';
import { geminiSigner } from '../gemini/decode.ts';
import { asText, parseJson, toRecord } from '../turns/json-value.ts';
import { listOf, readMember } from './member.ts';
import { readPartSignature, wrappedStart } from './part-signature.ts';

const start = Buffer.from(`"${wrappedStart}`);

/**
 * The body without reasoning that other providers wrote, which Google refuses; null if it has none. Other signatures of
 * theirs are removed from their parts.
 */
export function withoutForeignReasoning(body: Uint8Array): Uint8Array | null {
  if (!Buffer.from(body.buffer, body.byteOffset, body.byteLength).includes(start)) return null;
  const { contents } = toRecord(parseJson(Buffer.from(body).toString()));
  let isFound = false;
  const isForeign = (part: unknown): boolean => {
    const signature = asText(readMember(toRecord(part), 'thoughtSignature'));
    return signature !== undefined && readPartSignature(signature).signer !== geminiSigner;
  };
  const kept = listOf(contents).map((content) => {
    const parts = listOf(toRecord(content)['parts']);
    if (!parts.some(isForeign)) return content;
    isFound = true;
    // The pieces of a stream precede the one that has the signature.
    const isThought = (part: unknown): boolean => toRecord(part)['thought'] === true;
    return { ...toRecord(content), parts: parts.filter((part) => !isThought(part)).map(withoutSignature(isForeign)) };
  });
  return isFound ? spliceMembers(body, { contents: JSON.stringify(kept) }) : null;
}

const withoutSignature =
  (isForeign: (part: unknown) => boolean) =>
  (part: unknown): unknown => {
    if (!isForeign(part)) return part;
    const { thoughtSignature: _camel, thought_signature: _snake, ...rest } = toRecord(part);
    return rest;
  };
