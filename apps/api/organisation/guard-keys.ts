import type { IncomingMessage } from 'node:http';
import type { Request } from 'express';
import { Counter, type Registry } from 'prom-client';
import type { AccessSnapshot } from '#libs/snapshot/access-snapshot.ts';
import { createAuthenticate, type Authenticate } from '#libs/identity/authenticate.ts';
import { createRefusalLog, type RefusalLog } from '#libs/people/refusal-log.ts';
import type { TokenSignIn } from '#libs/identity/token-sign-in.ts';
import { createWrongKeyLimit } from '#libs/identity/wrong-key-limit.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { requireNetwork } from '#libs/http/allowed-networks.ts';
import { organisationId, type Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createClientAddress, type ClientAddress } from '#libs/http/client-address.ts';
import type { HttpAppDeps } from '#libs/http/create-http-app.ts';
import { addLogFields, getContext } from '#libs/http/request-context.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { ApiConfig } from '../config.ts';

type Deps = {
  config: Pick<ApiConfig, 'SLUICE_TRUSTED_PROXIES' | 'SLUICE_WRONG_KEYS_PER_MINUTE'>;
  snapshot: AccessSnapshot;
  /** null: tokens are not accepted. */
  tokens: TokenSignIn | null;
  eventLog: EventLog;
  /** The clock of the database, which decides when a key expires. */
  clock: Clock;
  registry: Registry;
  logger: Logger;
};

export type KeyGuard = {
  authenticate: Authenticate<IncomingMessage>;
  /**
   * Counts a guess of another secret, such as the token of an invite, as a wrong key until the returned function is
   * called.
   */
  slowGuesses: (request: IncomingMessage) => () => void;
  /** For `createHttpApp`, as `onForbidden`. */
  clientAddress: ClientAddress;
  onForbidden: NonNullable<HttpAppDeps['onForbidden']>;
  /** Records that the key or token of a request could not be used to sign in. */
  onRefusedSignIn: (request: Request, error: GatewayError) => void;
  /** Records refused requests as events. */
  refusals: RefusalLog;
};

/**
 * Authenticates requests. Addresses that send many wrong keys are slowed down. A refused request of a known key is
 * recorded as an event of that key.
 */
export function createKeyGuard({ config, snapshot, tokens, eventLog, clock, registry, logger }: Deps): KeyGuard {
  const registers = [registry];
  const getRegionAddress = createClientAddress(config.SLUICE_TRUSTED_PROXIES);
  const wrongKeys = createWrongKeyLimit(config.SLUICE_WRONG_KEYS_PER_MINUTE, () => performance.now());
  const failures = new Counter({
    name: 'sluice_authentication_failures_total',
    help: 'Requests rejected because they had no valid key or token, by reason (slowed: not checked because the address sent too many wrong keys).',
    labelNames: ['reason'],
    registers,
  });
  const refusals = createRefusalLog({ eventLog, logger, now: Date.now });
  const unrecorded: Counter = new Counter({
    name: 'sluice_refusals_unrecorded_total',
    help: 'Rejected requests that were not recorded as events because there were too many different ones.',
    registers,
    collect() {
      unrecorded.reset();
      unrecorded.inc(refusals.dropped());
    },
  });
  const slow = (request: IncomingMessage): (() => void) => wrongKeys.take(getRegionAddress(request));
  const authenticate = createAuthenticate<IncomingMessage>({
    snapshot,
    clock,
    tokens: tokens ?? undefined,
    slow,
    onFailure(reason, request) {
      failures.inc({ reason });
      // This helps an operator to find the client with the wrong key. Other requests are logged without it.
      addLogFields(request, { client_address: getRegionAddress(request), refused_because: reason });
    },
  });
  const onForbidden: KeyGuard['onForbidden'] = (request, { workspaceId, keyId, principal }, { code, message }) => {
    const { route, requestId } = getContext(request);
    const what = { method: request.method, route: route ?? 'unmatched', code: code ?? 'forbidden', message };
    refusals.note({ workspaceId, keyId, principal, ...what, address: getRegionAddress(request), requestId });
  };
  /** Refuses a caller whose requests must come from other networks. */
  const admit = (request: IncomingMessage, caller: Caller): Caller => {
    if (caller.networks === undefined) return caller;
    try {
      requireNetwork(caller.networks, getRegionAddress(request));
    } catch (error) {
      if (error instanceof GatewayError) onForbidden(request as Request, caller, error);
      throw error;
    }
    return caller;
  };
  return {
    slowGuesses: slow,
    authenticate(request) {
      const caller = authenticate(request);
      return caller instanceof Promise ? caller.then((known) => admit(request, known)) : admit(request, caller);
    },
    onRefusedSignIn(request, { code, message }) {
      const { route, requestId } = getContext(request);
      const what = { method: request.method, route: route ?? 'unmatched', code: code ?? 'unauthenticated', message };
      refusals.note({
        workspaceId: organisationId,
        keyId: null,
        ...what,
        address: getRegionAddress(request),
        requestId,
      });
    },
    clientAddress: getRegionAddress,
    onForbidden,
    refusals,
  };
}
