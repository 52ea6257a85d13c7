import type { EventObject } from '#libs/contracts/logs/events.ts';
import type { LogRecord } from '#libs/contracts/logs/logs.ts';
import { version } from '#libs/kernel/version.ts';

/** The version of the Open Cybersecurity Schema Framework (https://schema.ocsf.io/1.3.0/). */
const schemaVersion = '1.3.0';

/** What a class requires in addition to the members of every event. `activity`: the number and its caption. */
type Mapped = { classUid: 3001 | 3002 | 6003; activity: readonly [id: number, name: string]; members: object };

/**
 * An event in OCSF 1.3.0, with at least the members that it requires: of the base event `activity_id`, `category_uid`,
 * `class_uid`, `metadata` (`product`, `version`), `severity_id`, `time` and `type_uid`; of Account Change (3001) `user`; of
 * Authentication (3002) `user` and one of `service` and `dst_endpoint`; of API Activity (6003) `actor`, `api` and
 * `src_endpoint`. `unmapped` is the event as in `GET /v1/events`.
 */
export function toOcsfEvent(event: EventObject): object {
  const { correlation_id: correlation = null, address } = event.metadata;
  return {
    ...toBase(mapEvent(event), { ...event, time: event.recorded_at, correlation }, event.type.endsWith('refused')),
    actor: { user: toUser(event.metadata.actor) },
    src_endpoint: toEndpoint(address ?? firstAddress(event.data)),
    unmapped: event,
  };
}

type Named = { id: string; type: string; time: string; correlation: string | null };

function toBase({ classUid, activity, members }: Mapped, { id, type, time, correlation }: Named, isFailure: boolean) {
  const [activityId, activityName] = activity;
  return {
    category_uid: Math.floor(classUid / 1_000),
    class_uid: classUid,
    activity_id: activityId,
    activity_name: activityName,
    type_uid: classUid * 100 + activityId,
    time: Date.parse(time),
    severity_id: isFailure ? 2 : 1,
    status_id: isFailure ? 2 : 1,
    message: type,
    metadata: {
      version: schemaVersion,
      product: { name: 'Sluice', vendor_name: 'Sluice', version },
      uid: id,
      event_code: type,
      ...(correlation === null ? {} : { correlation_uid: correlation }),
    },
    ...members,
  };
}

/** An endpoint needs a name where the address is not known. */
const toEndpoint = (address?: string): object => (address === undefined ? { svc_name: 'sluice' } : { ip: address });

/** The record of a call, as `GET /v1/logs` shows it, with its workspace. */
export type CallObject = LogRecord & { workspace_id: string };

/**
 * The record of a call in OCSF 1.3.0, as API Activity (6003), with what that class requires. `unmapped` is the record as in
 * `GET /v1/logs`. The address of the caller is not recorded.
 */
export function toOcsfCall(call: CallObject, type: string): object {
  const { id, created_at: time, trace_id: correlation, operation, status, error_code: code } = call;
  const api = {
    operation,
    service,
    request: { uid: call.request_id },
    ...(status === null ? {} : { response: { code: status } }),
  };
  const mapped = { classUid: 6003, activity: [other, operation], members: { api } } as const;
  return {
    ...toBase(mapped, { id, type, time, correlation }, call.outcome !== 'succeeded'),
    duration: Math.round(call.duration_ms),
    ...(status === null ? {} : { status_code: String(status) }),
    ...(code === null ? {} : { status_detail: code }),
    actor: { user: toCaller(call) },
    src_endpoint: toEndpoint(),
    unmapped: call,
  };
}

const other = 99;
const service = { name: 'Sluice' };

function mapEvent(event: EventObject): Mapped {
  const [noun = '', verb = ''] = event.type.split('.');
  if (noun === 'session' || event.type === 'organisation.request_refused') return mapSignIn(event, verb);
  if (noun === 'user' && verb !== 'request_refused' && verb !== 'contents_read') return mapAccount(event, verb);
  return {
    classUid: 6003,
    activity: apiActivity(event, verb),
    members: {
      api: {
        operation: event.type,
        service,
        ...(event.metadata.request_id === undefined ? {} : { request: { uid: event.metadata.request_id } }),
      },
      resources: [{ uid: event.stream, type: noun }],
    },
  };
}

/** The end of a session and a refused sign-in do not name the user. */
function mapSignIn({ stream, data }: EventObject, verb: string): Mapped {
  const { principal } = data as { principal?: { id: string } };
  return {
    classUid: 3002,
    activity: verb === 'ended' ? [2, 'Logoff'] : [1, 'Logon'],
    members: {
      user: principal === undefined ? { name: 'unknown' } : { uid: principal.id },
      service,
      ...(verb === 'request_refused' ? {} : { session: { uid: stream } }),
    },
  };
}

const accountActivities: Readonly<Record<string, Mapped['activity']>> = {
  created: [1, 'Create'],
  deleted: [6, 'Delete'],
  erased: [6, 'Delete'],
};

function mapAccount({ stream, data }: EventObject, verb: string): Mapped {
  const email = data['email'];
  const user = { uid: stream, ...(typeof email === 'string' ? { email_addr: email } : {}) };
  return { classUid: 3001, activity: accountActivities[verb] ?? [other, verb], members: { user } };
}

const crud: Readonly<Record<string, Mapped['activity']>> = {
  created: [1, 'Create'],
  POST: [1, 'Create'],
  contents_read: [2, 'Read'],
  GET: [2, 'Read'],
  updated: [3, 'Update'],
  PUT: [3, 'Update'],
  PATCH: [3, 'Update'],
  deleted: [4, 'Delete'],
  expired: [4, 'Delete'],
  DELETE: [4, 'Delete'],
};

/** By what happened; for a refused request, by its method. */
function apiActivity({ data }: EventObject, verb: string): Mapped['activity'] {
  const { method } = data as { method?: string };
  return crud[verb === 'request_refused' ? (method ?? '') : verb] ?? [other, verb];
}

function toUser({ type, id, principal }: EventObject['metadata']['actor']): object {
  const [typeId, typeName] =
    type === 'system' ? [3, 'System'] : principal?.type === 'user' ? [1, 'User'] : [4, 'Service'];
  return {
    uid: principal?.id ?? id,
    type_id: typeId,
    type: typeName,
    ...(type === 'api_key' ? { credential_uid: id } : {}),
  };
}

/** The user of a call, or the key, if it belongs to none; neither is known of imported calls. */
function toCaller({ user_id: userId, api_key_id: keyId }: CallObject): object {
  const [typeId, type] = userId === null ? [4, 'Service'] : [1, 'User'];
  return {
    uid: userId ?? keyId ?? 'unknown',
    type_id: typeId,
    type,
    ...(keyId === null ? {} : { credential_uid: keyId }),
  };
}

/** Of an event that counts requests. */
function firstAddress({ addresses }: EventObject['data']): string | undefined {
  const first: unknown = Array.isArray(addresses) ? addresses[0] : undefined;
  if (typeof first === 'string') return first;
  return (first as { address?: string } | undefined)?.address;
}
