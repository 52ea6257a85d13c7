import type { IncomingHttpHeaders } from 'node:http';
import type { Caller } from '#libs/http/caller.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { hashKey, isWellFormedGatewayKey } from './gateway-key.ts';
import { readGatewayKey } from './credential-headers.ts';
import { looksLikeToken, type TokenSignIn } from './token-sign-in.ts';

/** Why a request without a usable key or token was rejected. `slowed`: it was rejected before its key was looked up. */
export type AuthenticationFailure = 'missing_key' | 'wrong_key' | 'wrong_token' | 'slowed';

/** An API key as every process stores it in memory. */
export type LiveApiKey = {
  /** One object for all requests of the key. */
  readonly caller: Caller;
  /** Infinity if it never expires. */
  readonly expiresAtMs: number;
};

/** The part of the snapshot with the keys (libs/snapshot/access-snapshot.ts). */
type KeySource = {
  findApiKey(digest: string): LiveApiKey | undefined;
  assertFresh(): void;
  refresh(): Promise<void>;
  readonly absent: { has(id: string): boolean; add(id: string): void };
};

type Deps<Request> = {
  snapshot: KeySource;
  clock: Clock;
  /** Signs users in by tokens instead of keys. Absent: no token is accepted. */
  tokens?: TokenSignIn | undefined;
  /**
   * Called for each request with an unknown key, before anything is looked up for it. Throws to refuse it. The returned
   * function is called when the key turns out to be valid.
   */
  slow?: (request: Request) => () => void;
  onFailure?: (failure: AuthenticationFailure, request: Request) => void;
};

type WithHeaders = { headers: IncomingHttpHeaders };

export type Authenticate<Request extends WithHeaders = WithHeaders> = (request: Request) => Caller | Promise<Caller>;

const digestsMax = 10_000;
const tokenLengthMax = 512;

/**
 * Returns the caller of a request. The gateway key is in `x-gateway-api-key` (alias `x-portkey-api-key`), or else the
 * bearer token of `Authorization`, or else in `api-key` or `x-api-key`. Synchronous, without hashing and without the
 * database, for a key that is in the snapshot and was used before; otherwise a promise.
 *
 * A JWT in place of the key signs its user in, if the operator has set that up (token-sign-in.ts).
 *
 * Throws `unauthenticated` with the same message for unknown, revoked and expired keys, `unavailable` when the snapshot
 * is stale or an unknown key cannot be looked up, and the errors of `slow`.
 */
export function createAuthenticate<Request extends WithHeaders = WithHeaders>({
  snapshot,
  clock,
  tokens,
  slow,
  onFailure,
}: Deps<Request>): Authenticate<Request> {
  // The map has full tokens as keys, because a prefix or a short hash could collide (CVE-2026-35030). Only tokens of
  // known keys are added, so that wrong ones cannot evict others.
  const digests = new Map<string, string>();

  const find = (token: string): Caller | null => {
    const cached = digests.get(token);
    const digest = cached ?? hashKey(token);
    const key = snapshot.findApiKey(digest);
    if (!key || key.expiresAtMs <= clock.now()) {
      if (cached !== undefined) digests.delete(token);
      return null;
    }
    if (cached === undefined) {
      if (digests.size >= digestsMax) digests.delete(digests.keys().next().value ?? '');
      digests.set(token, digest);
    }
    return key.caller;
  };

  const refused = (request: Request): GatewayError => {
    onFailure?.('wrong_key', request);
    return wrongKey();
  };

  const slowDown = (request: Request): (() => void) | undefined => {
    try {
      return slow?.(request);
    } catch (error) {
      onFailure?.('slowed', request);
      throw error;
    }
  };

  const findAgain = async (request: Request, token: string, forgive: (() => void) | undefined): Promise<Caller> => {
    const digest = hashKey(token);
    if (snapshot.absent.has(digest)) throw refused(request);
    try {
      await snapshot.refresh();
    } catch (error) {
      throw new GatewayError(
        'unavailable',
        'access_unavailable',
        'This key cannot be checked because the database is temporarily unavailable. Try again shortly.',
        {
          retryAfterMs: 1_000,
          cause: error,
        },
      );
    }
    const caller = find(token);
    if (caller) {
      forgive?.();
      return caller;
    }
    snapshot.absent.add(digest);
    throw refused(request);
  };

  /**
   * Checks a token that was not used before. Many people can sign in through one proxy, so only wrong tokens are counted.
   */
  const signIn = async (request: Request, token: string, source: TokenSignIn): Promise<Caller> => {
    slowDown(request)?.();
    try {
      return await source.verify(token);
    } catch (error) {
      if (!(error instanceof GatewayError) || error.kind !== 'unauthenticated') throw error;
      onFailure?.('wrong_token', request);
      slowDown(request);
      throw error;
    }
  };

  return (request) => {
    const { headers } = request;
    const token = readGatewayKey(headers);
    if (token === null) {
      onFailure?.('missing_key', request);
      throw lacksScheme(headers) ? missingScheme() : missingKey();
    }
    snapshot.assertFresh();
    if (tokens !== undefined && looksLikeToken(token)) return tokens.find(token) ?? signIn(request, token, tokens);
    const caller = token.length > tokenLengthMax ? null : find(token);
    if (caller) return caller;
    const forgive = slowDown(request);
    // Only well-formed keys are looked up. A key that the operator chose (SLUICE_BOOTSTRAP_KEY) is known after the next
    // poll.
    if (!isWellFormedGatewayKey(token)) throw refused(request);
    return findAgain(request, token, forgive);
  };
}

const missingKey = (): GatewayError =>
  new GatewayError(
    'unauthenticated',
    'missing_api_key',
    'You did not provide an API key. Send your gateway key in the header x-gateway-api-key, or as ' +
      'Authorization: Bearer if you do not send a provider key there.',
  );

/** Whether `Authorization` is a single word that can be a key, and not just the name of a scheme. */
const lacksScheme = ({ authorization = '' }: IncomingHttpHeaders): boolean =>
  /^\s*\S+\s*$/.test(authorization) && authorization.trim().toLowerCase() !== 'bearer';

const missingScheme = (): GatewayError =>
  new GatewayError(
    'unauthenticated',
    'missing_api_key',
    'The Authorization header has no scheme. Send "Authorization: Bearer", a space and the key, or the key ' +
      'alone in the header x-gateway-api-key.',
  );

const wrongKey = (): GatewayError =>
  new GatewayError(
    'unauthenticated',
    'invalid_api_key',
    'Incorrect API key provided: the gateway key is unknown, revoked or expired.',
  );
