import { Secret } from '#libs/kernel/logging/secret.ts';
import { SecretError } from './secret-error.ts';

/** A secret in memory. Its values are in closures, so that they are never printed. */
export type FetchedSecret = {
  readonly sizeBytes: number;
  /**
   * Returns the whole secret (`key` null), or a member of it. `json`: a JSON value, as its text. Throws SecretError
   * `malformed` and, for a missing member, `not_found`. Repeated calls return the same object.
   */
  pick(key: string | null, format: 'json' | 'string'): Secret;
};

type Members = Readonly<Record<string, unknown>>;

/** A secret that is one text, possibly a JSON object. */
export function textSecret(slug: string, text: string): FetchedSecret {
  return fetchedSecret(slug, Buffer.byteLength(text), text, () => parseObject(text));
}

/** A secret of named members, such as one of Vault. */
export function memberSecret(slug: string, members: Members): FetchedSecret {
  return fetchedSecret(slug, Buffer.byteLength(JSON.stringify(members)), null, () => members);
}

function fetchedSecret(
  slug: string,
  sizeBytes: number,
  text: string | null,
  readMembers: () => Members | null,
): FetchedSecret {
  const picked = new Map<string, Secret>();

  const memberText = (key: string, format: 'json' | 'string'): string => {
    const members = readMembers();
    const name = key.slice(0, 100);
    if (members === null) {
      const what = `holds a secret that is not a JSON object, so it has no member '${name}'. Leave out secret_key`;
      throw new SecretError('malformed', slug, what);
    }
    if (!Object.hasOwn(members, key)) {
      throw new SecretError('not_found', slug, `holds a secret without the member '${name}'`);
    }
    const value = members[key];
    if (typeof value === 'string') return format === 'json' ? requireJson(value) : value;
    if (format === 'json' && typeof value === 'object' && value !== null) return JSON.stringify(value);
    const what = `holds a secret whose member '${name}' is not a string`;
    throw new SecretError('malformed', slug, `${what}. For an object, set value_format to "json"`);
  };

  const wholeText = (format: 'json' | 'string'): string => {
    if (text !== null) return format === 'json' ? requireJson(text) : text;
    if (format === 'json') return JSON.stringify(readMembers());
    const what =
      'holds a secret with several members. Select one with secret_key, or use all of them with value_format "json"';
    throw new SecretError('malformed', slug, what);
  };

  const requireJson = (value: string): string => {
    if (parseObject(value) !== null) return value;
    throw new SecretError(
      'malformed',
      slug,
      'holds a value that is not a JSON object, although value_format is "json"',
    );
  };

  return {
    sizeBytes,
    pick(key, format) {
      const question = JSON.stringify([key, format]);
      let secret = picked.get(question);
      if (secret === undefined) {
        const value = key === null ? wholeText(format) : memberText(key, format);
        if (value === '') throw new SecretError('malformed', slug, 'holds an empty value');
        secret = new Secret(value);
        picked.set(question, secret);
      }
      return secret;
    },
  };
}

function parseObject(text: string): Members | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Members) : null;
  } catch {
    return null;
  }
}
