import { createCipheriv, createDecipheriv, createHmac, randomBytes } from 'node:crypto';
import type { MasterKeys } from './master-key.ts';

/** Makes and opens the cookies of browsers that have signed in. */
export type Sessions = {
  /** A cookie value that stands for the gateway key or token until `expiresAtMs` (rounded down to seconds). */
  seal(token: string, expiresAtMs: number): string;
  /** What the cookie value stands for; null if it was not made here or has expired at `nowMs`. */
  open(cookie: string, nowMs: number): string | null;
};

const ivBytes = 12;
const tagBytes = 16;

/**
 * A session is the gateway key or token itself, encrypted by a key that is derived from the master key: nothing is stored,
 * any process opens it, and it ends at once when the key that it stands for is revoked. While a master key is being
 * replaced, sessions by either are accepted.
 */
export function createSessions(masterKeys: MasterKeys): Sessions {
  const [newestKey, ...otherKeys] = masterKeys.map(({ key }) =>
    createHmac('sha256', key).update('sluice browser sessions v1').digest(),
  ) as [Buffer, ...Buffer[]];
  return {
    seal(token, expiresAtMs) {
      const iv = randomBytes(ivBytes);
      const cipher = createCipheriv('aes-256-gcm', newestKey, iv);
      const text = `${Math.floor(expiresAtMs / 1_000)} ${token}`;
      const sealed = [iv, cipher.update(text, 'utf8'), cipher.final(), cipher.getAuthTag()];
      return Buffer.concat(sealed).toString('base64url');
    },
    open(cookie, nowMs) {
      const bytes = Buffer.from(cookie, 'base64url');
      if (bytes.length <= ivBytes + tagBytes) return null;
      for (const key of [newestKey, ...otherKeys]) {
        const text = decrypt(key, bytes);
        if (text === null) continue;
        const gap = text.indexOf(' ');
        return Number(text.slice(0, gap)) * 1_000 > nowMs ? text.slice(gap + 1) : null;
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
    return null; // made by another key, or changed
  }
}
