import type { IncomingMessage } from 'node:http';
import type { Request } from 'express';
import { Counter, type Registry } from 'prom-client';
import type { AccessSnapshot } from '#libs/snapshot/access-snapshot.ts';
import { createAuthenticate, type Authenticate } from '#libs/identity/authenticate.ts';
import { createFactLog, type FactLog, type FailedVerdict, type Read } from '#libs/people/facts/fact-log.ts';
import type { TokenSignIn } from '#libs/identity/token-sign-in.ts';
import { createWrongKeyLimit } from '#libs/identity/wrong-key-limit.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { requireNetwork } from '#libs/http/allowed-networks.ts';
import type { Caller } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createClientAddress, type ClientAddress } from '#libs/http/client-address.ts';
import type { HttpAppDeps } from '#libs/http/create-http-app.ts';
import { httpStatus } from '#libs/http/answers/error-response.ts';
import { addLogFields, getCaller, getContext } from '#libs/http/request-context.ts';
import { changesRecords } from '#libs/http/roles.ts';
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
  /** For `createHttpApp`. */
  clientAddress: ClientAddress;
  /** Records a request that is not allowed, and a change that was refused for another reason. */
  onRefused: NonNullable<HttpAppDeps['onRefused']>;
  /** Records that the caller of a request reads contents. */
  countRead: CountRead;
  /** Records that a call did not pass a guardrail. */
  countVerdict: CountVerdict;
  /** Records that the key or token of a request could not be used to sign in. */
  onRefusedSignIn: (request: Request, error: GatewayError) => void;
  /** Records refused requests, wrong keys and reads of contents as events. */
  facts: FactLog;
};

export type CountRead = (request: Request, kind: Read['kind'], id: string) => void;
export type CountVerdict = (request: Request, result: FailedVerdict['result']) => void;

/**
 * Authenticates requests. Addresses that send many wrong keys are slowed down. Wrong keys, refused requests of known keys, and
 * reads of contents are recorded as events.
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
  const facts = createFactLog({ eventLog, logger, now: Date.now });
  const unrecorded: Counter = new Counter({
    name: 'sluice_refusals_unrecorded_total',
    help: 'Rejected requests and reads of contents that were not recorded as events because there were too many different ones.',
    registers,
    collect() {
      unrecorded.reset();
      unrecorded.inc(facts.dropped());
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
      const address = getRegionAddress(request);
      addLogFields(request, { client_address: address, refused_because: reason });
      // Anyone can send requests without a key, so they say nothing.
      if (reason !== 'missing_key') facts.countFailure({ reason, address });
    },
  });
  const describe = (request: Request, { kind, code }: GatewayError) => {
    const { route, requestId } = getContext(request);
    const what = { method: request.method, route: route ?? 'unmatched', code: (code ?? kind).slice(0, 100) };
    return { ...what, address: getRegionAddress(request), requestId };
  };
  const onRefused: KeyGuard['onRefused'] = (request, { workspaceId, keyId, principal }, error) => {
    const status = httpStatus(error);
    const isForbidden = error.kind === 'forbidden';
    const isChange = status < 500 && changesRecords(getContext(request).scope ?? '');
    if (!isForbidden && !isChange) return;
    const who = { workspaceId, keyId, principal };
    // Only messages about rights never quote the request.
    const message = isForbidden ? { message: error.message } : {};
    facts.countRefusal({ who, status, ...describe(request, error), ...message });
  };
  /** Refuses a caller whose requests must come from other networks. */
  const admit = (request: IncomingMessage, caller: Caller): Caller => {
    if (caller.networks === undefined) return caller;
    try {
      requireNetwork(caller.networks, getRegionAddress(request));
    } catch (error) {
      if (error instanceof GatewayError) onRefused(request as Request, caller, error);
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
    onRefusedSignIn(request, error) {
      const { message } = error;
      facts.countRefusal({ who: null, status: httpStatus(error), ...describe(request, error), message });
    },
    countRead(request, kind, id) {
      const { workspaceId, keyId, principal } = getCaller(request);
      const { requestId } = getContext(request);
      const who = { workspaceId, keyId, principal };
      facts.countRead({ who, kind, id, address: getRegionAddress(request), requestId });
    },
    countVerdict(request, result) {
      const { workspaceId, keyId, principal } = getCaller(request);
      const { requestId } = getContext(request);
      const who = { workspaceId, keyId, principal };
      facts.countVerdict({ who, result, address: getRegionAddress(request), requestId });
    },
    clientAddress: getRegionAddress,
    onRefused,
    facts,
  };
}
