import { createHmac, timingSafeEqual } from 'node:crypto';
import type { MasterKey, MasterKeys } from './master-key.ts';

/** Makes and checks the tokens of links that need no API key. */
export type DownloadLinks = {
  /** Returns a token with which `subject` can be read until `expiresAtMs` (rounded down to seconds). */
  sign(subject: string, expiresAtMs: number): string;
  /** Whether a token was made here for this subject and has not expired at `nowMs`. */
  accepts(subject: string, token: string, nowMs: number): boolean;
};

/**
 * Tokens consist of an expiry and its HMAC, with a separate key that is derived from the master key: nothing is stored,
 * and any process can check them. While a master key is being replaced, tokens with either key are accepted.
 */
export function createDownloadLinks(masterKeys: MasterKeys): DownloadLinks {
  const keyOf = ({ key }: MasterKey): Buffer => createHmac('sha256', key).update('sluice download links v1').digest();
  const [newest, ...others] = masterKeys;
  const newestKey = keyOf(newest);
  const keys = [newestKey, ...others.map(keyOf)];
  const mac = (key: Buffer, subject: string, expiry: string): Buffer =>
    createHmac('sha256', key).update(`${expiry}\0${subject}`).digest();
  return {
    sign(subject, expiresAtMs) {
      const expiry = String(Math.floor(expiresAtMs / 1_000));
      return `${expiry}.${mac(newestKey, subject, expiry).toString('base64url')}`;
    },
    accepts(subject, token, nowMs) {
      const [, expiry, signature] = /^(\d{1,12})\.([A-Za-z0-9_-]{43})$/.exec(token) ?? [];
      if (expiry === undefined || signature === undefined || Number(expiry) * 1_000 <= nowMs) return false;
      const given = Buffer.from(signature, 'base64url');
      return keys.some((key) => timingSafeEqual(mac(key, subject, expiry), given));
    },
  };
}
