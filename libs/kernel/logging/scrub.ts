import { assignment, credentialShapes, looksRandom } from './credential-shapes.ts';

/**
 * Makes external text (a provider's error, a failed URL) safe to show (SEC-4): replaces everything that looks like a
 * credential and the `known` secrets, and cuts the text at `lengthMax` characters.
 */
export function scrub(text: string, known: readonly string[] = [], lengthMax = 2_000): string {
  let clean = text;
  // The longest first: if one secret begins with another, the rest of it would remain.
  for (const secret of known.toSorted((a, b) => b.length - a.length))
    if (secret.length >= 4) clean = clean.replaceAll(secret, '[redacted]');
  for (const shape of credentialShapes) {
    clean = clean.replace(shape, (_match, prefix: unknown) => `${typeof prefix === 'string' ? prefix : ''}[redacted]`);
  }
  clean = clean.replace(assignment, (match, name: string, between: string, value: string) =>
    looksRandom(value) ? `${name}${between}[redacted]` : match,
  );
  // The cut can leave half a surrogate pair, which jsonb rejects.
  return clean.length > lengthMax ? `${clean.slice(0, lengthMax).toWellFormed()}…` : clean;
}
