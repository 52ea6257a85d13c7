import { sql, type Kysely } from 'kysely';
import { getSqlState } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Turns } from '#libs/kernel/sharing/turns.ts';
import type { Kept } from './choose-buckets.ts';
import { logKeptFrom, readRollupState } from './rollups/roll-up.ts';
import { readRollupKeys, rollupKeysMax } from './rollups/rollup-keys.ts';

export type RunQuery = <Answer>(
  workspaceId: string,
  read: (db: Kysely<Database>, kept: Kept) => Promise<Answer>,
) => Promise<Answer>;

/**
 * Runs analytics queries when it is their workspace's turn. Throws rate_limited when too many queries of a workspace
 * wait, and invalid_request when a query takes longer than `timeoutMs`.
 */
export function createRunQuery(deps: {
  db: Kysely<Database>;
  now: () => number;
  turns: Turns;
  timeoutMs: number;
}): RunQuery {
  const { db, now, turns, timeoutMs } = deps;
  const runInTime: RunQuery = async (workspaceId, read) => {
    try {
      return await db.transaction().execute(async (tx) => {
        // Compiling these statements takes longer than running them, and so do parallel workers, which would use
        // processors that other work needs. A month's users fit this memory but not the default.
        await sql`select set_config('statement_timeout', ${String(timeoutMs)}, true),
          set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
          set_config('work_mem', '32MB', true)`.execute(tx);
        const state = await readRollupState(tx);
        if (!state) throw new Error('the table rollup_state has lost its row');
        const keys = await readRollupKeys(tx, workspaceId);
        return await read(tx, { ...state, keys, logFrom: await logKeptFrom(tx, 0), now: now() });
      });
    } catch (error) {
      if (getSqlState(error) !== '57014') throw error;
      const message = `The query took longer than ${timeoutMs / 1_000} s. Choose a shorter period, or leave out slow filters: trace_id, span_id, tokens, cost, weighted_feedback, several metadata keys, or a metadata key that is not among the ${rollupKeysMax} with rollups in this workspace.`;
      throw new GatewayError('invalid_request', 'query_too_broad', message, { cause: error });
    }
  };
  return (workspaceId, read) => turns.run(workspaceId, () => runInTime(workspaceId, read));
}
