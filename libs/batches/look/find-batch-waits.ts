import { sql, type Kysely } from 'kysely';
import type { BatchWait } from '#libs/contracts/batches/batches.ts';
import type { Database, LineWait } from '#libs/database/schema.ts';
import { toUnixSeconds } from '#libs/kernel/clock.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { describeBound, readBounds } from '../batch/bounds.ts';

/** Reports are written every two seconds. Older ones belong to a process that has ended or has lost its database. */
export const reportAge = sql`interval '15 seconds'`;

const nothing = { lines: null, target: null, model: null, since: null, until: null };

/**
 * Returns why an open batch makes less progress than it could: it is paused, its lines wait for something, or its
 * chunks wait for a worker. Empty for a batch that runs freely and for one that finalizes or has ended.
 */
export async function findBatchWaits(db: Kysely<Database>, batch: BatchRow): Promise<BatchWait[]> {
  if (batch.paused_at !== null) {
    const bounds = readBounds(batch);
    const message =
      bounds === null || bounds.reached === null
        ? 'The batch is paused. No lines are called until it is resumed.'
        : `The batch was paused because it reached its ${describeBound(bounds.reached, bounds)}. Resume it with a higher one.`;
    return [{ ...nothing, reason: 'paused', message, since: toUnixSeconds(batch.paused_at) }];
  }
  if (batch.status === 'validating') {
    const message = 'The batch is waiting for a worker to check its input file.';
    return (await isBeingValidated(db, batch.id)) ? [] : [{ ...nothing, reason: 'queued', message }];
  }
  if (batch.status !== 'in_progress') return [];
  const ofLines = await lineWaits(db, batch);
  if (ofLines.length > 0) return ofLines;
  const { held, ready, due } = await chunkStates(db, batch.id);
  if (held) return [];
  if (!ready && due !== null) {
    const message =
      'All lines that have started are waiting for a rate limit, a circuit breaker, a budget or a secret. They made room ' +
      'for other batches.';
    return [{ ...nothing, reason: 'snoozed', message, until: toUnixSeconds(due) }];
  }
  const message = 'The batch is waiting for a free worker.';
  return [{ ...nothing, reason: 'queued', message }];
}

async function lineWaits(db: Kysely<Database>, batch: BatchRow): Promise<BatchWait[]> {
  const { rows } = await sql<{ waits: LineWait[] }>`
    select waits from batch_line_report
    where batch_id = ${batch.id} and workspace_id = ${batch.workspace_id} and reported_at > now() - ${reportAge}`.execute(
    db,
  );
  const all = rows.flatMap(({ waits }) => waits);
  // All lines that wait for a budget wait for the same one, whatever their models.
  const groups = Map.groupBy(all, (wait) => {
    const { reason, label, model } = wait;
    return JSON.stringify(reason === 'budget_used_up' ? [reason] : [reason, label, model, isPaced(wait)]);
  });
  const waits = [...groups.values()].map((group): BatchWait => {
    const [first] = group as [LineWait];
    const { reason, budget } = first;
    const untils = group.flatMap(({ until_ms: until }) => (until === null ? [] : [until]));
    const lines = group.reduce((sum, wait) => sum + wait.lines, 0);
    const target = onlyOne(group.map(({ label }) => label));
    const model = onlyOne(group.map((wait) => wait.model));
    const known = reason in causes ? (reason as keyof typeof causes) : 'gateway';
    return {
      reason: known === 'budget_used_up' ? 'usage_limit_exceeded' : known,
      message: `${whoWaits({ reason, lines, target, model })}: ${budget ?? (isPaced(first) ? paced : causes[known])}`,
      lines,
      target,
      model,
      since: toUnixSeconds(new Date(Math.min(...group.map(({ since_ms: since }) => since)))),
      until: untils.length === 0 ? null : toUnixSeconds(new Date(Math.min(...untils))),
    };
  });
  return waits.toSorted((a, b) => (b.lines ?? 0) - (a.lines ?? 0));
}

/** The value, if all are equal; otherwise null. */
const onlyOne = (values: readonly (string | null)[]): string | null =>
  new Set(values).size === 1 ? (values[0] ?? null) : null;

type Waiting = Pick<BatchWait, 'target' | 'model'> & { reason: string; lines: number };

function whoWaits({ reason, lines, target, model }: Waiting): string {
  const ofModel = model === null ? '' : ` of model ${model}`;
  const through = target === null ? '' : ` ${reason === 'secret_unavailable' ? 'for' : 'through'} ${target}`;
  return `${lines} ${lines === 1 ? 'line' : 'lines'}${ofModel}${through} ${lines === 1 ? 'is' : 'are'} waiting`;
}

/** Whether a rate limit of this gateway spreads the lines. A provider that answers 429 says until when. */
const isPaced = ({ reason, until_ms: until }: LineWait): boolean => reason === 'rate_limited' && until === null;
const paced = 'a rate limit of this gateway spreads them over time.';

const causes = {
  rate_limited: 'the provider limits the rate of these calls (429).',
  budget_used_up: 'the remaining budget does not cover another call.',
  circuit_open: 'the circuit breaker is open because the previous calls failed.',
  provider_busy: 'the maximum number of calls with this credential is already running.',
  retry: 'their last call failed and will be retried.',
  gateway: 'the database of the gateway is unavailable.',
  secret_unavailable: 'the secret manager with the credential is not responding.',
} as const;

async function isBeingValidated(db: Kysely<Database>, batchId: string): Promise<boolean> {
  const turn = await db.selectFrom('batch_turn').select('holder').where('batch_id', '=', batchId).executeTakeFirst();
  return turn === undefined || turn.holder !== null;
}

type ChunkStates = { held: boolean; ready: boolean; due: Date | null };

/** Which states the chunks of a batch have. One step through an index for each, however many chunks there are. */
async function chunkStates(db: Kysely<Database>, batchId: string): Promise<ChunkStates> {
  const { rows } = await sql<ChunkStates>`
    select exists (select from batch_chunk where batch_id = ${batchId} and state = 'held') as held,
      exists (select from batch_chunk where batch_id = ${batchId} and state = 'ready') as ready,
      (select min(due_at) from batch_chunk where batch_id = ${batchId} and state = 'waiting') as due`.execute(db);
  return rows[0] as ChunkStates;
}
