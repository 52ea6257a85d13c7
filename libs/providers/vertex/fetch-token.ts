import { SignJWT } from 'jose';
import { LRUCache } from 'lru-cache';
import { GatewayError } from '#libs/kernel/errors.ts';
import { scrub } from '#libs/kernel/logging/scrub.ts';
import type { AuthorizeTools, Upstream } from '../provider.ts';
import { invalidCredential, getTokenUrl, type ServiceAccount } from './service-account.ts';
import { asNumber, asText, parseJson, toRecord } from '../turns/json-value.ts';

type Token = { text: string; staleAt: number };

const scope = 'https://www.googleapis.com/auth/cloud-platform';
const lifetimeSeconds = 3_600;
/** A token is replaced this long before it expires, because a call can wait in a queue at Google. */
const marginMs = 300_000;
/** More service accounts than one process uses; each entry takes about 1.5 kB. */
const accountsMax = 1_000;

/**
 * Fetches access tokens for service accounts (RFC 7523) and caches each until five minutes before it expires. Calls that
 * need the same token at the same time share one fetch.
 */
export function createTokens() {
  const tokens = new LRUCache<string, Token>({ max: accountsMax });
  const fetches = new Map<string, Promise<string>>();

  const start = (account: ServiceAccount, upstream: Upstream, tools: AuthorizeTools): Promise<string> => {
    const { digest } = account;
    const fetched = fetchToken(account, upstream, tools)
      .then((token) => {
        tokens.set(digest, token);
        return token.text;
      })
      .finally(() => fetches.delete(digest));
    fetches.set(digest, fetched);
    return fetched;
  };

  /** Throws GatewayError: invalid_request for an account that Google rejects, provider_failed or _timeout otherwise. */
  return async (account: ServiceAccount, upstream: Upstream, tools: AuthorizeTools): Promise<string> => {
    const kept = tokens.get(account.digest);
    if (kept !== undefined && tools.now < kept.staleAt) return kept.text;
    const running = fetches.get(account.digest);
    if (running === undefined) return start(account, upstream, tools);
    try {
      return await running;
    } catch (error) {
      // The call that started the fetch was cancelled, but this one was not.
      if (!(error instanceof GatewayError) || error.code !== 'call_aborted') throw error;
      return fetches.get(account.digest) ?? start(account, upstream, tools);
    }
  };
}

async function fetchToken(account: ServiceAccount, upstream: Upstream, tools: AuthorizeTools): Promise<Token> {
  const url = getTokenUrl(account, upstream);
  const issuedAt = Math.floor(tools.now / 1_000);
  const assertion = await new SignJWT({ scope })
    .setProtectedHeader({ alg: 'RS256', typ: 'JWT', ...(account.keyId === undefined ? {} : { kid: account.keyId }) })
    .setIssuer(account.clientEmail)
    .setAudience(account.tokenUri)
    .setIssuedAt(issuedAt)
    .setExpirationTime(issuedAt + lifetimeSeconds)
    .sign(account.key);
  tools.keepSecret(assertion);
  const form = new URLSearchParams({ grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer', assertion });
  const headers = ['accept', 'application/json', 'content-type', 'application/x-www-form-urlencoded'];
  const { status, body } = await tools.fetch({
    method: 'POST',
    origin: url.origin,
    path: url.pathname + url.search,
    headers: [...headers, 'accept-encoding', 'identity', 'user-agent', 'sluice'],
    body: Buffer.from(form.toString()),
  });
  return readToken(status, body, tools.now);
}

function readToken(status: number, body: Buffer, now: number): Token {
  const answer = toRecord(parseJson(body.toString()));
  const { access_token: text, expires_in: seconds, error, error_description: description } = answer;
  if (status === 200 && typeof text === 'string' && /^[\x21-\x7e]{1,8192}$/.test(text)) {
    const lifetimeMs = Math.max(0, asNumber(seconds) ?? lifetimeSeconds) * 1_000;
    return { text, staleAt: now + lifetimeMs - Math.min(marginMs, lifetimeMs / 2) };
  }
  if (status >= 400 && status < 500 && status !== 429) {
    const reason = [asText(error), asText(description)].filter(Boolean).join(': ');
    throw invalidCredential(`Google returned status ${status}${reason === '' ? '' : ` (${scrub(reason, [], 300)})`}`);
  }
  throw new GatewayError(
    'provider_failed',
    'upstream_invalid_response',
    `Vertex AI could not be authenticated: the token endpoint returned status ${status}${status === 200 ? ' without a token' : ''}.`,
  );
}
