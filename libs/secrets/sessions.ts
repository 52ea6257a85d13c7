import { createCipheriv, createDecipheriv, createHmac, randomBytes } from 'node:crypto';
import type { MasterKeys } from './master-key.ts';

/** Makes and opens the cookies of browsers that have signed in. */
export type Sessions = {
  /** Returns a cookie value for a session until `expiresAtMs` (rounded down to seconds). */
  seal(session: SealedSession, expiresAtMs: number): string;
  /** Returns the session of a cookie value; null if it was not made here or has expired at `nowMs`. */
  open(cookie: string, nowMs: number): SealedSession | null;
};

/** The id of a session, and the gateway key or token with which it began. */
export type SealedSession = { id: string; token: string };

const ivBytes = 12;
const tagBytes = 16;

/**
 * A cookie contains the gateway key or token itself, encrypted by a key that is derived from the master key. It is
 * stored nowhere else, any process can open it, and the session ends when its key is revoked. While a master key is
 * being replaced, cookies by either are accepted.
 */
export function createSessions(masterKeys: MasterKeys): Sessions {
  const [newestKey, ...otherKeys] = masterKeys.map(({ key }) =>
    createHmac('sha256', key).update('sluice browser sessions v1').digest(),
  ) as [Buffer, ...Buffer[]];
  return {
    seal({ id, token }, expiresAtMs) {
      const iv = randomBytes(ivBytes);
      const cipher = createCipheriv('aes-256-gcm', newestKey, iv);
      const text = `${Math.floor(expiresAtMs / 1_000)} ${id} ${token}`;
      const sealed = [iv, cipher.update(text, 'utf8'), cipher.final(), cipher.getAuthTag()];
      return Buffer.concat(sealed).toString('base64url');
    },
    open(cookie, nowMs) {
      const bytes = Buffer.from(cookie, 'base64url');
      if (bytes.length <= ivBytes + tagBytes) return null;
      for (const key of [newestKey, ...otherKeys]) {
        const text = decrypt(key, bytes);
        if (text === null) continue;
        const [end, id] = text.split(' ', 2) as [string, string | undefined];
        if (id === undefined || Number(end) * 1_000 <= nowMs) return null;
        return { id, token: text.slice(end.length + id.length + 2) };
      }
      return null;
    },
  };
}

function decrypt(key: Buffer, bytes: Buffer): string | null {
  const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, ivBytes), { authTagLength: tagBytes });
  decipher.setAuthTag(bytes.subarray(-tagBytes));
  try {
    return decipher.update(bytes.subarray(ivBytes, -tagBytes), undefined, 'utf8') + decipher.final('utf8');
  } catch {
    return null; // It was made by another key, or changed.
  }
}
