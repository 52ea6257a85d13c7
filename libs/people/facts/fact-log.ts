import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import type { EventActor } from '#libs/event-log/event.ts';
import { organisationId, type Caller } from '#libs/http/caller.ts';
import { actorType, asActor } from '#libs/identity/call-identity.ts';
import type { AuthenticationFailure } from '#libs/identity/authenticate.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { CallVerdict } from '#libs/request-log/columns.ts';
import {
  apiKeyModel,
  type ContentsRead,
  type GuardrailFailed,
  type RequestRefused,
} from '#libs/resources/api-keys/api-keys.ts';
import { refusedSignIns, sessionModel } from '../sessions.ts';
import { userModel } from '../users/users.ts';
import { createCountedFacts, type Counted, type CountedFacts, type Fact } from './counted-facts.ts';
import { recordForOrganisation, type AuthenticationFailures } from './organisation-events.ts';

/** The key, or the user without a key, that a request acts with. */
type Who = Pick<Caller, 'workspaceId' | 'keyId' | 'principal'>;

/** A request of a known key or user that was refused, or a refused sign-in. */
export type Refusal = {
  /** Null for a sign-in, because its key or token was invalid. */
  who: Who | null;
  method: string;
  /** The template of the route. */
  route: string;
  status: number;
  code: string;
  /** Absent if it can quote the request. */
  message?: string;
  address: string;
  requestId: string;
};

/** A request whose key or token was wrong, so that its owner is unknown. */
type Failure = { reason: Exclude<AuthenticationFailure, 'missing_key'>; address: string };

/** A read of something that can contain prompts and answers. `id`: of the log record, file, batch or export. */
export type Read = { who: Who; kind: ContentsRead['kind']; id: string; address: string; requestId: string };

/** A call that did not pass a guardrail. */
export type FailedVerdict = { who: Who; result: CallVerdict; address: string; requestId: string };

type AnyFact = Fact & ({ refusal: Refusal } | { failure: Failure } | { read: Read } | { verdict: FailedVerdict });

export type FactLog = Omit<CountedFacts<AnyFact>, 'count'> & {
  countRefusal: (refusal: Refusal) => void;
  countFailure: (failure: Failure) => void;
  countRead: (read: Read) => void;
  countVerdict: (verdict: FailedVerdict) => void;
};

type Deps = { eventLog: Pick<EventLog, 'transact'>; logger: Logger; now: () => number };

/**
 * Records refused requests, wrong keys, reads of contents and failed guardrails as events, each with a count: at most one per
 * minute for a key, route and reason, for the wrong keys of the whole process, for a key and a kind of contents, and for a
 * key and the result of a guardrail.
 */
export function createFactLog({ eventLog, logger, now }: Deps): FactLog {
  const write = async (counted: Counted<AnyFact>): Promise<void> => {
    const { first } = counted;
    if ('failure' in first) await writeFailures(eventLog, counted);
    else if ('read' in first) await writeRead(eventLog, first.read, counted);
    else if ('verdict' in first) await writeVerdict(eventLog, first.verdict, counted);
    else await writeRefusal(eventLog, first.refusal, counted);
  };
  const { count, ...facts } = createCountedFacts<AnyFact>({ name: 'audit of requests', write, logger, now });
  return {
    ...facts,
    countRefusal(refusal) {
      const { who, method, route, code, address } = refusal;
      const key = [who?.keyId ?? refusedSignIns, method, route, code].join(' ');
      count({ workspaceId: who?.workspaceId ?? organisationId, key, address, refusal });
    },
    countFailure(failure) {
      const { reason, address } = failure;
      count({ workspaceId: organisationId, key: 'authentication', address, item: reason, failure });
    },
    countRead(read) {
      const { who, kind, id, address } = read;
      count({ workspaceId: who.workspaceId, key: `${who.keyId} reads ${kind}`, address, item: id, read });
    },
    countVerdict(verdict) {
      const { who, result, address } = verdict;
      const { kind, id, version, verdict: outcome } = result;
      const key = [who.keyId, kind, id, version, outcome].join(' ');
      count({ workspaceId: who.workspaceId, key, address, verdict });
    },
  };
}

const toTimes = ({ firstAt, lastAt }: Counted<AnyFact>): { first_at: string; last_at: string } => ({
  first_at: new Date(firstAt).toISOString(),
  last_at: new Date(lastAt).toISOString(),
});

async function writeRefusal(
  eventLog: Deps['eventLog'],
  { who, method, route, status, code, message, requestId }: Refusal,
  counted: Counted<AnyFact>,
): Promise<void> {
  const addresses = [...counted.addresses.counts.keys()];
  const what = { method, route, status, code, ...(message === undefined ? {} : { message }) };
  const data: RequestRefused = { ...what, count: counted.count, addresses, ...toTimes(counted) };
  if (who !== null) return await appendToStream(eventLog, who, requestId, 'request_refused', data);
  const metadata = { actor: { type: 'system' as const, id: 'sign-in' }, request_id: requestId };
  await eventLog.transact({ workspaceId: organisationId, streams: [refusedSignIns], metadata }, (unit) =>
    unit.append(sessionModel, refusedSignIns, [{ type: 'session.refused', data }]),
  );
}

async function writeRead(eventLog: Deps['eventLog'], read: Read, counted: Counted<AnyFact>): Promise<void> {
  const { counts, others } = counted.items;
  const addresses = [...counted.addresses.counts.keys()];
  const what = { kind: read.kind, count: counted.count, ids: [...counts.keys()], reads_of_others: others };
  const data: ContentsRead = { ...what, addresses, ...toTimes(counted) };
  await appendToStream(eventLog, read.who, read.requestId, 'contents_read', data);
}

async function writeVerdict(
  eventLog: Deps['eventLog'],
  { who, requestId, result }: FailedVerdict,
  counted: Counted<AnyFact>,
): Promise<void> {
  const addresses = [...counted.addresses.counts.keys()];
  const status = result.verdict === 'denied' ? 446 : 246;
  const data: GuardrailFailed = { ...result, status, count: counted.count, addresses, ...toTimes(counted) };
  await appendToStream(eventLog, who, requestId, 'guardrail_failed', data);
}

async function writeFailures(eventLog: Deps['eventLog'], counted: Counted<AnyFact>): Promise<void> {
  const { counts, others } = counted.addresses;
  const data: AuthenticationFailures = {
    count: counted.count,
    reasons: Object.fromEntries(counted.items.counts),
    addresses: [...counts].map(([address, count]) => ({ address, count })),
    other_addresses: others,
    ...toTimes(counted),
  };
  const metadata = { actor: { type: 'system' as const, id: 'authentication' } };
  await recordForOrganisation(eventLog, { type: 'organisation.request_refused', data }, metadata);
}

/** Appends an event to the stream of a key, or of a user who signed in without one. */
async function appendToStream(
  eventLog: Deps['eventLog'],
  who: Who,
  requestId: string,
  verb: string,
  data: Record<string, unknown>,
): Promise<void> {
  const { workspaceId, keyId, principal } = who;
  const type = actorType(who);
  const actor: EventActor = { type, id: keyId, principal: asActor(principal), workspace_id: workspaceId };
  const model = type === 'user' ? userModel : apiKeyModel;
  await eventLog.transact(
    { workspaceId, streams: [keyId], metadata: { actor, request_id: requestId } },
    (unit: UnitOfWork) => unit.append(model, keyId, [{ type: `${type}.${verb}`, data }]),
  );
}
