import { sql, type Kysely } from 'kysely';
import { sqlStateOf } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Kept } from './choose-buckets.ts';
import { logKeptFrom, readRollupState } from './roll-up.ts';
import { readRollupKeys, rollupKeysMax } from './rollup-keys.ts';

export type QueryLimits = {
  /** The longest that one query may take. */
  timeoutMs: number;
  /** Queries of this process that run at once; others wait. A workspace gets half of them. */
  runningMax: number;
  /** Queries of one workspace that wait. A dashboard asks for twenty graphs at once. */
  waitingMax: number;
};

export type RunQuery = <Answer>(
  workspaceId: string,
  read: (db: Kysely<Database>, kept: Kept) => Promise<Answer>,
) => Promise<Answer>;

/**
 * Runs analytics queries, of which a few heavy ones must not take the connections and processors of everything else. Throws
 * rate_limited when too many of a workspace wait, and invalid_request when a query takes too long.
 */
export function createRunQuery(deps: { db: Kysely<Database>; now: () => number; limits: QueryLimits }): RunQuery {
  const { db, now, limits } = deps;
  const ownMax = Math.max(1, Math.floor(limits.runningMax / 2));
  const running = new Map<string, number>();
  const waiting: { workspaceId: string; start: () => void }[] = [];
  let runningAll = 0;

  const mayRun = (workspaceId: string): boolean =>
    runningAll < limits.runningMax && (running.get(workspaceId) ?? 0) < ownMax;
  const count = (workspaceId: string, by: 1 | -1): void => {
    runningAll += by;
    const own = (running.get(workspaceId) ?? 0) + by;
    if (own === 0) running.delete(workspaceId);
    else running.set(workspaceId, own);
  };

  async function acquire(workspaceId: string): Promise<void> {
    if (mayRun(workspaceId)) return count(workspaceId, 1);
    if (waiting.filter((each) => each.workspaceId === workspaceId).length >= limits.waitingMax) {
      const message = `This workspace already has ${limits.waitingMax} analytics queries that wait. Send this one again when some of them have been answered.`;
      throw new GatewayError('rate_limited', 'too_many_queries', message, { retryAfterMs: 1_000 });
    }
    const { promise, resolve } = Promise.withResolvers<void>();
    waiting.push({ workspaceId, start: resolve });
    await promise;
  }

  function release(workspaceId: string): void {
    count(workspaceId, -1);
    const next = waiting.findIndex((each) => mayRun(each.workspaceId));
    if (next === -1) return;
    const [started] = waiting.splice(next, 1);
    if (started === undefined) return;
    count(started.workspaceId, 1);
    started.start();
  }

  return async (workspaceId, read) => {
    await acquire(workspaceId);
    try {
      return await db.transaction().execute(async (tx) => {
        // Compiling these statements takes longer than running them, and so do parallel workers, which would take processors
        // from everything else; and a month's users fit the memory, not the default.
        await sql`select set_config('statement_timeout', ${String(limits.timeoutMs)}, true),
          set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
          set_config('work_mem', '32MB', true)`.execute(tx);
        const state = await readRollupState(tx);
        if (!state) throw new Error('the table rollup_state has lost its row');
        const keys = await readRollupKeys(tx, workspaceId);
        return await read(tx, { ...state, keys, logFrom: await logKeptFrom(tx, 0), now: now() });
      });
    } catch (error) {
      if (sqlStateOf(error) !== '57014') throw error;
      const message =
        `The query took longer than ${limits.timeoutMs / 1_000} s. Ask for a shorter time, or without filters that read every ` +
        'call of that time: on trace_id, span_id, tokens, cost, weighted_feedback, two metadata keys at once, or a metadata ' +
        `key that is not among the ${rollupKeysMax} that this workspace has rollups of.`;
      throw new GatewayError('invalid_request', 'query_too_broad', message, { cause: error });
    } finally {
      release(workspaceId);
    }
  };
}
