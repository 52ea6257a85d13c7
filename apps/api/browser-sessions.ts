import type { IncomingMessage, ServerResponse } from 'node:http';
import { gatewayKeyOf } from '#libs/identity/credential-headers.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Sessions } from '#libs/secrets/sessions.ts';

/** Signs browsers in by a cookie that stands for the gateway key or token with which its session began. */
export type BrowserSessions = {
  /**
   * Gives a request without a key the one that its session stands for, as if the client had sent it. A cookie that has expired
   * or was not made here is ignored. Throws forbidden for a request that another web page may have sent.
   */
  admit(request: IncomingMessage): void;
  /** Sets the cookie. `keyExpiresAtMs`: the session ends no later. Throws invalid_request for a token too long for a cookie. */
  begin(request: IncomingMessage, response: ServerResponse, keyExpiresAtMs: number): void;
  /** Deletes the cookie. */
  end(response: ServerResponse): void;
};

const cookieName = 'sluice_session';

/** What the console sends with every request that changes something. A page of another origin cannot, without our consent. */
const consoleHeader = 'x-sluice-console';

/** Browsers keep cookies of up to 4,096 bytes, name and attributes included; encryption and base64 add a third. */
const tokenLengthMax = 2_800;

/** `isSecure`: browsers reach the API by https only, so the cookie is never sent without it. */
export function createBrowserSessions(deps: {
  sessions: Sessions;
  clock: Clock;
  ttlMs: number;
  isSecure: boolean;
}): BrowserSessions {
  const { sessions, clock, ttlMs, isSecure } = deps;
  // Strict: no page of another site makes the browser send it, not even by a link.
  const attributes = `Path=/; HttpOnly; SameSite=Strict${isSecure ? '; Secure' : ''}`;
  return {
    admit(request) {
      if (request.headers.cookie === undefined || gatewayKeyOf(request.headers) !== null) return;
      const cookie = cookieOf(request.headers.cookie);
      const token = cookie === null ? null : sessions.open(cookie, clock.now());
      if (token === null) return;
      refuseOtherPages(request);
      request.headers['x-gateway-api-key'] = token;
    },
    begin(request, response, keyExpiresAtMs) {
      const token = gatewayKeyOf(request.headers) ?? '';
      if (token.length > tokenLengthMax) {
        const message = `A browser session takes keys and tokens of up to ${tokenLengthMax} characters, but this one has ${token.length}. Sign in with an API key.`;
        throw new GatewayError('invalid_request', 'string_above_max_length', message);
      }
      const nowMs = clock.now();
      const expiresAtMs = Math.min(nowMs + ttlMs, keyExpiresAtMs);
      const maxAge = Math.max(0, Math.floor((expiresAtMs - nowMs) / 1_000));
      const value = sessions.seal(token, expiresAtMs);
      response.appendHeader('set-cookie', `${cookieName}=${value}; Max-Age=${maxAge}; ${attributes}`);
    },
    end(response) {
      response.appendHeader('set-cookie', `${cookieName}=; Max-Age=0; ${attributes}`);
    },
  };
}

function cookieOf(header: string): string | null {
  for (const pair of header.split(';')) {
    const [name = '', ...value] = pair.split('=');
    if (name.trim() === cookieName) return value.join('=').trim();
  }
  return null;
}

/**
 * SameSite already keeps the cookie from other sites, but not from other origins of the same one (a sibling subdomain). Browsers
 * name the origin where they know it; a request that changes something needs the header of the console too, which no form can send.
 */
function refuseOtherPages({ method = 'GET', headers }: IncomingMessage): void {
  const site = headers['sec-fetch-site'];
  const isOurs = site === undefined || site === 'same-origin' || (site === 'none' && method === 'GET');
  const isSafe = method === 'GET' || method === 'HEAD';
  if (isOurs && isSameHost(headers) && (isSafe || headers[consoleHeader] !== undefined)) return;
  const message = `A session cookie only works for requests of the console itself, which send the header ${consoleHeader}. Elsewhere, send a gateway key in x-gateway-api-key.`;
  throw new GatewayError('forbidden', 'foreign_page', message);
}

function isSameHost({ origin, host }: IncomingMessage['headers']): boolean {
  if (origin === undefined) return true;
  return URL.canParse(origin) && new URL(origin).host === host;
}
