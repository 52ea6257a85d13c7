import { sql } from 'kysely';
import { z } from 'zod';
import { BrowserSessionObject } from '#libs/contracts/people/sessions.ts';
import { asSystem, runForWorkspace } from '#libs/database/workspace-binding.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { Command } from '#libs/event-log/event-log.ts';
import type { Caller, Principal } from '#libs/http/caller.ts';
import { announceAccessChange } from '#libs/identity/access-change.ts';
import { hasEveryScope, refuseStronger } from '#libs/http/rights.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { ApiKeyData } from '#libs/resources/api-keys/api-key-data.ts';
import { defineKind, type KindDeps } from '#libs/resources/define-kind.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { viewOf } from '#libs/records/resource-view.ts';

/** Times in ISO 8601. */
type SessionData = {
  principal: Pick<Principal, 'type' | 'id'>;
  /** The key that began the session; for a token, its user. */
  key_id: string;
  user_agent: string | null;
  address: string | null;
  expires_at: string;
};

/** Further sign-ins end the oldest sessions. */
const sessionsMax = 100;
/** The limit per principal and minute: each start creates an event, and every process reads it. */
const startsPerMinute = 30;

/** The stream of all refused sign-ins, which do not belong to any principal. */
export const refusedSignIns = 'session_refused';

/**
 * A signed-in browser. Its cookie works as long as this record exists, so that ending the session takes effect in every
 * process within a second. POST /v1/session creates it.
 */
export const sessionKind = defineKind<z.ZodRawShape, SessionData, true>({
  noun: 'session',
  idPrefix: 'session_',
  // A session is another form of a key.
  area: 'api_keys',
  path: '/v1/sessions',
  names: { one: 'browser session', many: 'browser sessions', tag: 'Sessions', object: 'browser-session' },
  fields: {},
  creation: false,
  changes: false,
  removal: {
    verb: 'ended',
    async check({ data }, caller, { tx }) {
      if (data.principal.id === caller.principal.id || hasEveryScope(caller)) return;
      const { rows } = await sql<{ data: ApiKeyData }>`
        select data from resource where id = ${data.key_id} and kind = 'api_key'`.execute(tx);
      const [key] = rows;
      if (key !== undefined) return refuseStronger(caller, { id: data.key_id, ...key.data }, 'revoke');
      const message =
        'Only the user, or a key with all scopes, can end the session of a user who signed in with a token.';
      throw new GatewayError('forbidden', 'insufficient_scope', message, { param: 'id' });
    },
  },
  filters: {
    principal_id: {
      schema: z.string().min(1).max(200).describe('The ID of a user or key.'),
      where: (id: string) => sql`data -> 'principal' ->> 'id' = ${id}`,
    },
  },

  history: { events: { refused: (data) => data }, neverActive: ['refused'] },

  view: ({ workspace_id, data, created_at }, nowMs) => ({
    workspace_id,
    principal: data.principal,
    key_id: data.key_id,
    address: data.address,
    user_agent: data.user_agent,
    status: Date.parse(data.expires_at) > nowMs ? 'active' : 'expired',
    created_at: created_at.toISOString(),
    expires_at: data.expires_at,
  }),
  viewSchema: BrowserSessionObject,

  cached: { leavesOutExpired: true, toEntry: () => true },
});

/** For code that begins and ends sessions outside the routes of the kind. */
export const sessionModel = resourceModel([sessionKind]);

type Deps = Pick<KindDeps, 'db' | 'eventLog' | 'snapshot' | 'clock'>;
type Begun = { caller: Caller; metadata: EventMetadata; userAgent: string | null; expiresAtMs: number };

/** Records that a browser has signed in and returns the ID of its session. Throws rate_limited. */
export async function beginSession(deps: Deps, { caller, metadata, userAgent, expiresAtMs }: Begun): Promise<string> {
  const { type, id: principalId } = caller.principal;
  const { active, recent } = await findSessions(deps, principalId);
  if (recent >= startsPerMinute) {
    const message = `This user or key has signed in ${recent} times within a minute. Reuse the cookie from the first answer for all requests.`;
    throw new GatewayError('rate_limited', 'too_many_sessions', message, { retryAfterMs: 60_000 });
  }
  const id = newId('session_');
  const nowMs = deps.clock.now();
  const isOver = ({ data: { expires_at: end } }: Found, index: number): boolean =>
    index >= sessionsMax - 1 || Date.parse(end) <= nowMs;
  const over = active.filter(isOver).map((session) => session.id);
  const data: SessionData = {
    principal: { type, id: principalId },
    key_id: caller.keyId,
    user_agent: userAgent?.slice(0, 200) ?? null,
    address: metadata.address ?? null,
    expires_at: new Date(expiresAtMs).toISOString(),
  };
  const { workspaceId } = caller;
  if (over.length > 0) await endAll(deps, { workspaceId, streams: over, metadata });
  await runForWorkspace(workspaceId, () =>
    deps.eventLog.transact({ workspaceId, streams: [id], metadata }, async (unit) => {
      await unit.append(sessionModel, id, [{ type: 'session.created', data }]);
      await announceAccessChange(unit);
    }),
  );
  await deps.snapshot.catchUp();
  return id;
}

/** Returns the active sessions of a user or key in all workspaces, newest first. */
export async function listOwnSessions(
  deps: Pick<Deps, 'db' | 'clock'>,
  principalId: string,
): Promise<BrowserSessionObject[]> {
  const nowMs = deps.clock.now();
  const { active } = await findSessions(deps, principalId);
  return active
    .filter(({ data }) => Date.parse(data.expires_at) > nowMs)
    .map((row) => viewOf(sessionKind, row, nowMs) as BrowserSessionObject);
}

/** Ends one session, or (null) all sessions of the caller's user or key. Returns how many were ended. */
export async function endSessions(
  deps: Deps,
  { caller, metadata, id }: { caller: Caller; metadata: EventMetadata; id: string | null },
): Promise<number> {
  const { active } = await findSessions(deps, caller.principal.id);
  const ids = active.map((session) => session.id).filter((each) => id === null || each === id);
  if (ids.length === 0) return 0;
  const ended = await endAll(deps, { workspaceId: caller.workspaceId, streams: ids, metadata });
  await deps.snapshot.catchUp();
  return ended;
}

type Found = ResourceRow<SessionData>;

/** Returns the sessions of a user or key in all workspaces, newest first, and how many began within the last minute. */
async function findSessions(
  { db }: Pick<Deps, 'db'>,
  principalId: string,
): Promise<{ active: Found[]; recent: number }> {
  // No session lasts longer than a month (SLUICE_SESSION_TTL).
  const isRecent = sql`created_at > clock_timestamp() - interval '31 days'`;
  const isOf = sql`kind = 'session' and ${isRecent} and data -> 'principal' ->> 'id' = ${principalId}`;
  return await asSystem(async () => {
    const { rows: active } = await sql<Found>`
      select * from resource where ${isOf} and deleted_at is null
      order by created_at desc, id desc limit 500`.execute(db);
    const { rows: recent } = await sql<{ count: number }>`
      select count(*)::int as count from resource
      where ${isOf} and created_at > clock_timestamp() - interval '1 minute'`.execute(db);
    return { active, recent: recent[0]?.count ?? 0 };
  });
}

/** Ends the sessions of these streams, in any workspace, and returns how many were still active. */
async function endAll({ eventLog }: Pick<Deps, 'eventLog'>, command: Command): Promise<number> {
  return await asSystem(() =>
    eventLog.transact(command, async (unit) => {
      let ended = 0;
      for (const id of command.streams) {
        const row = await unit.load(sessionModel, id);
        if (row === undefined || row.deleted_at !== null) continue;
        await unit.append(sessionModel, id, [{ type: 'session.ended', data: {} }]);
        ended += 1;
      }
      await announceAccessChange(unit);
      return ended;
    }),
  );
}
