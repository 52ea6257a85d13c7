/** How a signature begins that the client's dialect does not know. */
export const wrappedPrefix = 'sluice.';

/**
 * The signature of a block of reasoning as a client gets it: a signature of the dialect's own vendor (`own`) as it is, any
 * other one as `sluice.<signer>.<signature>`, so that it is returned only to models that accept it. `signature` can be
 * empty, because reasoning without a signature has an author, too. `signer` has no dots.
 */
export const wrapSignature = (own: string, signer: string | undefined, signature: string): string =>
  signer === own ? signature : `${wrappedPrefix}${signer ?? 'unknown'}.${signature}`;

/** The signer and the signature that a client sent back: what `wrapSignature` made, or a signature of `own`. */
export function readSignature(own: string, text: string): { signer: string; signature: string } {
  const [, signer = own, signature = text] = /^sluice\.([^.]*)\.(.*)$/s.exec(text) ?? [];
  return { signer, signature };
}
