import { geminiSigner } from '../gemini/decode.ts';
import { readSignature, wrappedPrefix, wrapSignature } from '../turns/signatures.ts';

/**
 * How the `thoughtSignature` of another provider's reasoning begins. The member contains bytes in base64, which many of
 * Google's clients decode, so a wrapped signature is written in base64 as well.
 */
export const wrappedStart = Buffer.from(wrappedPrefix).subarray(0, 6).toString('base64');

/** Marks reasoning that its provider does not show, whose `data` is kept in place of a signature. */
const hiddenMark = 'data:';

/** The `thoughtSignature` of a part. Google's own signatures stay as they are. */
export function writePartSignature(signer: string | undefined, signature: string): string {
  const wrapped = wrapSignature(geminiSigner, signer, signature);
  return signer === geminiSigner ? wrapped : Buffer.from(wrapped).toString('base64');
}

/** The `thoughtSignature` of reasoning that is not shown. */
export const writeHidden = (signer: string | undefined, data: string): string =>
  writePartSignature(signer, hiddenMark + data);

/** The signer and signature of a part that a client sent back. `data`: it is reasoning that is not shown. */
export function readPartSignature(text: string): { signer: string; signature: string; data?: string } {
  // Python's client writes bytes with the URL-safe alphabet, which Node reads too.
  const isWrapped = text.startsWith(wrappedStart);
  const found = readSignature(geminiSigner, isWrapped ? Buffer.from(text, 'base64').toString() : text);
  if (found.signer === geminiSigner || !found.signature.startsWith(hiddenMark)) return found;
  return { ...found, data: found.signature.slice(hiddenMark.length) };
}
