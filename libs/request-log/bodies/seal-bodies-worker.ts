import { createCipheriv, randomBytes } from 'node:crypto';
import { setPriority } from 'node:os';
import { isMainThread } from 'node:worker_threads';
import { deflateRawSync } from 'node:zlib';
import { move, transferableSymbol, valueSymbol } from 'piscina';
import { createRedaction } from './redact-body.ts';

if (!isMainThread && process.platform === 'linux') setPriority(0, 10);

/** The bodies of one blob. `identity` is bound to each of them, with its position. */
export type BodiesToSeal = {
  identity: string;
  key: Uint8Array;
  redact: readonly string[];
  bodies: readonly { request: Uint8Array | null; response: Uint8Array | null }[];
};

export type SealedBodies = { bytes: Uint8Array; offsets: number[] };

/** The format of one call's bodies in a blob: nonce, tag, and the compressed JSON of both, encrypted. */
export const bodyCipher = { name: 'aes-256-gcm', nonceBytes: 12, tagBytes: 16 } as const;

/**
 * A text that became longer than this is not recorded. This is twice the maximum that the recorder accepts of a body.
 */
const redactedCharsMax = 2_097_152;
/** JSON can need six characters for each one, in both texts. */
export const documentBytesMax = 2 * 6 * redactedCharsMax + 1_024;

/** Runs in a thread: redacts, compresses and encrypts the bodies of many calls. */
export default function sealBodies({ identity, key, redact, bodies }: BodiesToSeal): unknown {
  const redactBody = createRedaction(redact);
  const clean = (bytes: Uint8Array | null): string | null => {
    if (bytes === null) return null;
    const redacted = redactBody(Buffer.from(bytes).toString());
    // A pattern that matches single characters replaces each of them by ten.
    return redacted.length > redactedCharsMax ? null : redacted;
  };
  const offsets: number[] = [];
  const pieces: Buffer[] = [];
  let size = 0;
  for (const [index, { request, response }] of bodies.entries()) {
    offsets.push(size);
    const document = deflateRawSync(JSON.stringify({ request: clean(request), response: clean(response) }));
    const nonce = randomBytes(bodyCipher.nonceBytes);
    const cipher = createCipheriv(bodyCipher.name, key, nonce, { authTagLength: bodyCipher.tagBytes });
    cipher.setAAD(Buffer.from(`${identity}/${index}`));
    const sealed = Buffer.concat([cipher.update(document), cipher.final()]);
    pieces.push(nonce, cipher.getAuthTag(), sealed);
    size += bodyCipher.nonceBytes + bodyCipher.tagBytes + sealed.length;
  }
  offsets.push(size);
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  const found: SealedBodies = { bytes, offsets };
  return move({ [transferableSymbol]: [bytes.buffer], [valueSymbol]: found });
}
