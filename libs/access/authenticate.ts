import type { IncomingHttpHeaders } from 'node:http';
import type { Caller } from '#libs/http/caller.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AccessSnapshot } from './access-snapshot.ts';
import { digestOf, isWellFormedGatewayKey } from './gateway-key.ts';
import { gatewayKeyOf } from './request-credentials.ts';

/** What became of a request without a usable key; `slowed`: it was refused unread. */
export type AuthenticationFailure = 'missing_key' | 'wrong_key' | 'slowed';

type Deps<Request> = {
  snapshot: Pick<AccessSnapshot, 'findApiKey' | 'assertFresh' | 'refresh' | 'absent'>;
  clock: Clock;
  /**
   * Called for each request with a key that is not known, before anything is looked up for it. Throws to refuse it; what it
   * returns is called when the key turns out to be right.
   */
  slow?: (request: Request) => () => void;
  onFailure?: (failure: AuthenticationFailure) => void;
};

type WithHeaders = { headers: IncomingHttpHeaders };

export type Authenticate<Request extends WithHeaders = WithHeaders> = (request: Request) => Caller | Promise<Caller>;

const digestsMax = 10_000;
const tokenLengthMax = 512;

/**
 * Who sends a request: the gateway key is `x-gateway-api-key` (alias `x-portkey-api-key`), or the bearer of
 * `Authorization` when that header is absent, or `api-key` or `x-api-key` when there is no bearer either. Synchronous,
 * without hashing and without the database, for a key that is in the snapshot and was seen before; a promise otherwise.
 *
 * Throws `unauthenticated`, with one text for unknown, revoked and expired keys, and `unavailable` when the snapshot is
 * stale or a key that it lacks cannot be looked up; what `slow` throws.
 */
export function createAuthenticate<Request extends WithHeaders = WithHeaders>({
  snapshot,
  clock,
  slow,
  onFailure,
}: Deps<Request>): Authenticate<Request> {
  // Full tokens as keys: a prefix or a short hash of them could collide (CVE-2026-35030). Only tokens of known keys are
  // kept, so that wrong ones push nothing out.
  const digests = new Map<string, string>();

  const find = (token: string): Caller | null => {
    const cached = digests.get(token);
    const digest = cached ?? digestOf(token);
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

  const refused = (): GatewayError => {
    onFailure?.('wrong_key');
    return wrongKey();
  };

  const slowDown = (request: Request): (() => void) | undefined => {
    try {
      return slow?.(request);
    } catch (error) {
      onFailure?.('slowed');
      throw error;
    }
  };

  const findAgain = async (token: string, forgive: (() => void) | undefined): Promise<Caller> => {
    const digest = digestOf(token);
    if (snapshot.absent.has(digest)) throw refused();
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
    throw refused();
  };

  return (request) => {
    const { headers } = request;
    const token = gatewayKeyOf(headers);
    if (token === null) {
      onFailure?.('missing_key');
      throw lacksScheme(headers) ? missingScheme() : missingKey();
    }
    snapshot.assertFresh();
    const caller = token.length > tokenLengthMax ? null : find(token);
    if (caller) return caller;
    const forgive = slowDown(request);
    // What is no key of ours is not looked up: a key that the operator chose (SLUICE_BOOTSTRAP_KEY) comes by polling.
    if (!isWellFormedGatewayKey(token)) throw refused();
    return findAgain(token, forgive);
  };
}

const missingKey = (): GatewayError =>
  new GatewayError(
    'unauthenticated',
    'missing_api_key',
    'You did not provide an API key. Send your gateway key in the header x-gateway-api-key, or as ' +
      'Authorization: Bearer if you do not send a provider key there.',
  );

/** An `Authorization` of one word, as a key is, and not that of a scheme alone. */
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
