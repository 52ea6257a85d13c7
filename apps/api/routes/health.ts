import { sql, type Kysely } from 'kysely';
import { z } from 'zod';
import type { AccessSnapshot } from '#libs/access/access-snapshot.ts';
import { pendingMigrations } from '#libs/database/migrate.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Route } from '#libs/http/route.ts';

const Live = z.object({ status: z.literal('live') });
const Ready = z.object({ status: z.enum(['ready', 'not_ready']), checks: z.record(z.string(), z.string()) });

/** GET /health/live: the process answers. Looks at nothing else, so that an outage of the database restarts nobody. */
export function live(): Route {
  return {
    method: 'GET',
    path: '/health/live',
    operationId: 'healthLive',
    summary: 'Whether the process is alive',
    tag: 'Operations',
    scope: 'public',
    responses: { 200: { description: 'It is.', schema: Live } },
    handler: (_request, response) => void response.json({ status: 'live' }),
  };
}

/**
 * GET /health/ready: whether requests should come here: database, migrations, access snapshot, and not stopping.
 * Workers are told in the body only, because live calls do not need them.
 */
export function ready(deps: { db: Kysely<Database>; snapshot: AccessSnapshot; isStopping: () => boolean }): Route {
  return {
    method: 'GET',
    path: '/health/ready',
    operationId: 'healthReady',
    summary: 'Whether the process can serve requests',
    tag: 'Operations',
    scope: 'public',
    responses: { 200: { description: 'It can.', schema: Ready }, 503: { description: 'It cannot.', schema: Ready } },
    handler: async (_request, response) => {
      const checks = {
        process: deps.isStopping() ? 'stopping' : 'ok',
        database: await outcome(async () => void (await sql`select 1`.execute(deps.db))),
        migrations: await outcome(async () => {
          const pending = await pendingMigrations(deps.db);
          if (pending.length > 0) throw new Error(`pending: ${pending.join(', ')}`);
        }),
        access: await outcome(() => deps.snapshot.assertFresh()),
      };
      const isReady = Object.values(checks).every((check) => check === 'ok');
      const workers = await countWorkers(deps.db);
      response
        .status(isReady ? 200 : 503)
        .json({ status: isReady ? 'ready' : 'not_ready', checks: { ...checks, workers } });
    },
  };
}

/** No reasons of the database's own: they may name hosts and users. The log has them. */
async function outcome(check: () => Promise<void> | void): Promise<string> {
  try {
    await check();
    return 'ok';
  } catch {
    return 'failed';
  }
}

/** Sessions of workers' queues on this database; 'unknown' when it cannot be asked. */
async function countWorkers(db: Kysely<Database>): Promise<string> {
  try {
    const { rows } = await sql<{ workers: number }>`
      select count(distinct client_port)::int as workers from pg_stat_activity
      where application_name = 'sluice-worker' and datname = current_database()`.execute(db);
    return (rows[0]?.workers ?? 0) > 0 ? 'connected' : 'none';
  } catch {
    return 'unknown';
  }
}
