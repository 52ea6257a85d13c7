import type { Kysely } from 'kysely';
import type { ModelCheck } from '#libs/contracts/system.ts';
import { createPool } from '#libs/database/pool.ts';
import type { Database } from '#libs/database/schema.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { recordModelCheck, readModelCheck } from '../../platform/model-check.ts';
import { inlineModels } from '../../platform/models.ts';

const noteEveryMs = 1_000;

/**
 * Compares the read models with the event log, as `sluice check records` does, and stores its progress for the console. Uses
 * its own sessions, because the time that it takes grows with the log. Rethrows the error that ends it, so that the job is
 * tried again.
 */
export async function checkReadModels(
  deps: { db: Kysely<Database>; connectionString: string; logger: Logger },
  signal: AbortSignal,
): Promise<void> {
  const { db, connectionString, logger } = deps;
  const started: ModelCheck = {
    object: 'read_model_check',
    state: 'running',
    asked_at: (await readModelCheck(db))?.asked_at ?? new Date().toISOString(),
    ended_at: null,
    events: 0,
    problem: null,
  };
  await recordModelCheck(db, started);
  let events = 0;
  let notedMs = performance.now();
  let noting: Promise<void> = Promise.resolve();
  const onProgress = (count: number): void => {
    signal.throwIfAborted();
    events = count;
    if (performance.now() - notedMs < noteEveryMs) return;
    notedMs = performance.now();
    // If the progress cannot be stored, the next second's progress is newer anyway.
    noting = noting.then(() => recordModelCheck(db, { ...started, events })).catch(() => {});
  };
  const end = async (state: ModelCheck['state'], problem: string | null): Promise<void> => {
    await noting;
    await recordModelCheck(db, { ...started, state, events, problem, ended_at: new Date().toISOString() });
  };
  const pool = createPool(
    { connectionString, applicationName: 'sluice-check', max: 2, statementTimeoutMs: 0, transactionTimeoutMs: 0 },
    logger,
  );
  try {
    const report = await checkInlineModels(pool, inlineModels, onProgress);
    events = report.events;
    const { difference } = report;
    if (difference === null) return await end('equal', null);
    logger.error({ difference }, 'a read model differs from the event log');
    // Only names the row, because its fields can belong to a workspace that the reader cannot see.
    await end('different', `The row '${difference.id}' of '${difference.model}' differs from its events.`);
  } catch (error) {
    if (!signal.aborted) await end('failed', 'The check did not finish. The log of the worker shows the cause.');
    throw error;
  } finally {
    await pool.end();
  }
}
