import { SecretError } from './secret-error.ts';

/** Parses the JSON object in a manager's answer. Throws SecretError, without quoting it. */
export function parseAnswer(slug: string, body: Buffer): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(body.toString());
    if (typeof value === 'object' && value !== null) return value as Record<string, unknown>;
  } catch {
    // The parser's error would quote the answer.
  }
  throw new SecretError('unavailable', slug, 'cannot be fetched: its secret manager did not return a JSON object');
}
