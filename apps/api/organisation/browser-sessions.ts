import type { IncomingMessage, ServerResponse } from 'node:http';
import { readGatewayKey } from '#libs/identity/credential-headers.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { getContext } from '#libs/http/request-context.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Sessions } from '#libs/secrets/sessions.ts';

/** Signs browsers in by a cookie that contains the gateway key or token with which its session began. */
export type BrowserSessions = {
  /**
   * Adds the key of its session to a request without a key, as if the client had sent it. A cookie that has expired or
   * was not made here is ignored. Throws forbidden for a request that another web page may have sent.
   */
  admit(request: IncomingMessage): void;
  /** The ID of the session that a request was admitted with; null for one with a key. */
  sessionOf(request: IncomingMessage): string | null;
  /**
   * Sets the cookie of a session, to which `record` assigns an ID. `keyExpiresAtMs`: the latest end of the session.
   * Throws invalid_request for a token too long for a cookie, and the errors of `record`.
   */
  begin(
    request: IncomingMessage,
    response: ServerResponse,
    keyExpiresAtMs: number,
    record: (expiresAtMs: number) => Promise<string>,
  ): Promise<void>;
  /** Deletes the cookie. */
  end(response: ServerResponse): void;
};

const plainCookieName = 'sluice_session';
/** Browsers accept a cookie with this prefix only from this host, by https, so that no sibling domain can plant one. */
const hostCookieName = `__Host-${plainCookieName}`;
/** A request has a second cookie of this name only if another page has set it. */
const cookiesMax = 20;

/**
 * A header that the console sends with every request that changes something. A page of another origin cannot send it
 * without our consent.
 */
const consoleHeader = 'x-sluice-console';

/** Browsers accept cookies of up to 4,096 bytes, including name and attributes; encryption and base64 add a third. */
const tokenLengthMax = 2_800;

const sessionKey = Symbol('session');
type Carrier = { [sessionKey]?: string };

/**
 * `isSecure`: browsers reach the API by https only, so the cookie is never sent without it. `isLive`: whether a session
 * is still active, as far as this process knows.
 */
export function createBrowserSessions(deps: {
  sessions: Sessions;
  isLive: (id: string) => boolean;
  clock: Clock;
  ttlMs: number;
  isSecure: boolean;
}): BrowserSessions {
  const { sessions, isLive, clock, ttlMs, isSecure } = deps;
  const cookieName = isSecure ? hostCookieName : plainCookieName;
  // Strict: pages of other sites cannot make the browser send it, not even by a link.
  const attributes = `Path=/; HttpOnly; SameSite=Strict${isSecure ? '; Secure' : ''}`;
  return {
    admit(request) {
      if (request.headers.cookie === undefined || readGatewayKey(request.headers) !== null) return;
      const found = cookiesOf(request.headers.cookie, cookieName)
        .map((cookie) => sessions.open(cookie, clock.now()))
        .filter((session) => session !== null);
      const session = found.find(({ id }) => isLive(id)) ?? found[0];
      if (session === undefined) return;
      refuseOtherPages(request);
      refusePages(request);
      request.headers['x-gateway-api-key'] = session.token;
      (request as Carrier)[sessionKey] = session.id;
      getContext(request).isBrowserSession = true;
    },
    sessionOf: (request) => (request as Carrier)[sessionKey] ?? null,
    async begin(request, response, keyExpiresAtMs, record) {
      const token = readGatewayKey(request.headers) ?? '';
      if (token.length > tokenLengthMax) {
        const message = `A browser session can only use keys and tokens of up to ${tokenLengthMax} characters, but this one has ${token.length}. Sign in with an API key.`;
        throw new GatewayError('invalid_request', 'string_above_max_length', message);
      }
      const nowMs = clock.now();
      const expiresAtMs = Math.min(nowMs + ttlMs, keyExpiresAtMs);
      const maxAge = Math.max(0, Math.floor((expiresAtMs - nowMs) / 1_000));
      const value = sessions.seal({ id: await record(expiresAtMs), token }, expiresAtMs);
      response.setHeader('cache-control', 'no-store');
      response.appendHeader('set-cookie', `${cookieName}=${value}; Max-Age=${maxAge}; ${attributes}`);
    },
    end(response) {
      response.appendHeader('set-cookie', `${cookieName}=; Max-Age=0; ${attributes}`);
    },
  };
}

function cookiesOf(header: string, wanted: string): string[] {
  const found: string[] = [];
  for (const pair of header.split(';')) {
    const [name = '', ...value] = pair.split('=');
    if (name.trim() === wanted) found.push(value.join('=').trim());
  }
  return found.slice(0, cookiesMax);
}

/**
 * SameSite already protects the cookie from other sites, but not from other origins of the same site (a sibling
 * subdomain). Browsers send the origin if they know it. A request that changes something also needs the header of the
 * console, which no form can send.
 */
function refuseOtherPages({ method = 'GET', headers }: IncomingMessage): void {
  const site = headers['sec-fetch-site'];
  const isOurs = site === undefined || site === 'same-origin' || (site === 'none' && method === 'GET');
  const isSafe = method === 'GET' || method === 'HEAD';
  if (isOurs && isSameHost(headers) && (isSafe || headers[consoleHeader] !== undefined)) return;
  const message = `A session cookie only works for requests of the console itself, which send the header ${consoleHeader}. Elsewhere, send a gateway key in x-gateway-api-key.`;
  throw new GatewayError('forbidden', 'foreign_page', message);
}

/**
 * The console reads answers with fetch and EventSource, whose destination is empty. Any other destination (a document, a frame,
 * a script, an image) would let the browser interpret the answer in the origin of the console.
 */
function refusePages({ headers }: IncomingMessage): void {
  const destination = headers['sec-fetch-dest'];
  if (destination === undefined || destination === 'empty') return;
  const message =
    'A browser can open only /console and /docs as pages. To read this address, use the console, or send a gateway key in ' +
    'x-gateway-api-key.';
  throw new GatewayError('forbidden', 'not_a_page', message);
}

function isSameHost({ origin, host }: IncomingMessage['headers']): boolean {
  if (origin === undefined) return true;
  return URL.canParse(origin) && new URL(origin).host === host;
}
