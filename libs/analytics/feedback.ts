import { sql, type Kysely } from 'kysely';
import { v7 as uuidv7 } from 'uuid';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { uuidOrNull } from '#libs/kernel/ids.ts';

/** Feedback on a trace: `value` from -10 to 10, `weight` from 0 to 1. */
export type Feedback = {
  traceId: string;
  value: number;
  weight: number;
  metadata: Record<string, unknown> | null;
};

/** More feedback on one trace is refused: a trace is one answer or a few, and fewer people than this rate it. */
const feedbackPerTraceMax = 1_000;

/**
 * Stores feedback of a workspace, all or none, and returns its IDs. The traces need not be known, because their calls
 * can arrive later. Throws quota_exceeded when a trace has too much already.
 */
export async function recordFeedback(
  db: Kysely<Database>,
  workspaceId: string,
  items: readonly Feedback[],
  giver: { source: 'api' | 'guardrail'; keyId: string | null },
): Promise<string[]> {
  if (items.length === 0) return [];
  const full = await sql<{ trace_id: string }>`
    select trace_id from feedback
    where workspace_id = ${workspaceId} and trace_id = any(${[...new Set(items.map((item) => item.traceId))]}::text[])
    group by trace_id having count(*) >= ${feedbackPerTraceMax} limit 1`.execute(db);
  if (full.rows[0]) {
    const message = `The trace '${full.rows[0].trace_id.slice(0, 100)}' already has ${feedbackPerTraceMax} items of feedback, the maximum. Update one of them instead.`;
    throw new GatewayError('quota_exceeded', 'too_much_feedback', message, { param: 'trace_id' });
  }
  const now = sql<Date>`clock_timestamp()`;
  const rows = items.map(({ traceId, value, weight, metadata }) => ({
    id: uuidv7(),
    workspace_id: workspaceId,
    trace_id: traceId,
    value,
    weight: String(weight),
    metadata: metadata === null ? null : JSON.stringify(metadata),
    source: giver.source,
    key_id: giver.keyId,
    created_at: now,
    updated_at: now,
  }));
  await db.insertInto('feedback').values(rows).execute();
  return rows.map(({ id }) => id);
}

/** Changes feedback. Weight and metadata stay unchanged if they are undefined. Throws not_found. */
export async function changeFeedback(
  db: Kysely<Database>,
  workspaceId: string,
  id: string,
  change: { value: number; weight?: number | undefined; metadata?: Record<string, unknown> | null | undefined },
): Promise<void> {
  const { numUpdatedRows } = await db
    .updateTable('feedback')
    .set({
      value: change.value,
      updated_at: sql<Date>`clock_timestamp()`,
      ...(change.weight === undefined ? {} : { weight: String(change.weight) }),
      ...(change.metadata === undefined
        ? {}
        : { metadata: change.metadata === null ? null : JSON.stringify(change.metadata) }),
    })
    .where('workspace_id', '=', workspaceId)
    .where('id', '=', uuidOrNull(id))
    .executeTakeFirst();
  if (numUpdatedRows > 0n) return;
  throw new GatewayError('not_found', 'feedback_not_found', `There is no feedback '${id.slice(0, 100)}'.`, {
    param: 'id',
  });
}
