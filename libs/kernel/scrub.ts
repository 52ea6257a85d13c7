// Shapes of credentials that providers echo back in their error texts (SEC-4).
const credentialShapes = [
  /\b(?:sk|rk|pk|gsk|xai|glw|slk)[-_][A-Za-z0-9_-]{8,}/g,
  /\bBearer\s+[A-Za-z0-9._~+/=-]{8,}/gi,
  /\bAKIA[0-9A-Z]{12,}/g,
  /\bAIza[0-9A-Za-z_-]{20,}/g,
  /([?&](?:api[_-]?key|key|token|secret)=)[^&\s"']+/gi,
  /(:\/\/[^\s/:@]+:)[^\s/@]+(?=@)/g, // the password of a URL
];

/**
 * Makes text from outside (a provider's error, a failed URL) safe to show: replaces whatever looks like a credential and the
 * `known` secrets, and cuts the text at `lengthMax` characters.
 */
export function scrub(text: string, known: readonly string[] = [], lengthMax = 2_000): string {
  let clean = text;
  // The longest first: if one secret begins with another, the rest of it would remain.
  for (const secret of known.toSorted((a, b) => b.length - a.length))
    if (secret.length >= 4) clean = clean.replaceAll(secret, '[redacted]');
  for (const shape of credentialShapes) {
    clean = clean.replace(shape, (_match, prefix: unknown) => `${typeof prefix === 'string' ? prefix : ''}[redacted]`);
  }
  // The cut may leave half a surrogate pair, which jsonb rejects.
  return clean.length > lengthMax ? `${clean.slice(0, lengthMax).toWellFormed()}…` : clean;
}
