import type { IncomingHttpHeaders } from 'node:http';

/** The token of `Authorization: Bearer`, '' if there is none. */
export function readBearerToken(headers: IncomingHttpHeaders): string {
  return /^Bearer +(.*\S) *$/i.exec(headers.authorization ?? '')?.[1] ?? '';
}
