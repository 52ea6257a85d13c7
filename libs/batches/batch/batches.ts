import type { Kysely } from 'kysely';
import type { BatchTarget, Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import { transactOnce, type CallIdentity } from '#libs/event-log/idempotency.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { newId } from '#libs/kernel/ids.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import type { BatchDetail } from '#libs/contracts/batches/batches.ts';
import { decideBatch, type BatchCommand } from './batch.ts';
import { admitBatch, type BatchLimits } from './admission.ts';
import { batchModel, type BatchRow } from './batch-model.ts';
import { appendAndFollow, closeIfOver } from '../chunks/follow-status.ts';
import { sendTickets } from '../chunks/tickets.ts';
import { openTurn } from '../chunks/turns.ts';
import { toOpenAiBatch, type OpenAiBatch } from './to-openai-batch.ts';
import { findBatchWaits } from '../look/find-batch-waits.ts';
import { findBatchProgress } from '../look/find-batch-progress.ts';

export type NewBatch = {
  /** Default: a new one. */
  id?: string;
  inputFileId: string;
  /** The size of the input file. null when there is no such file; validation reports that. */
  inputBytes: number | null;
  /** Further changes in the transaction that creates the batch, such as recording its input file, and their streams. */
  also?: { streams: readonly string[]; run: (unit: UnitOfWork, batchId: string) => Promise<void> };
  endpoint: string;
  completionWindow: string;
  metadata: Record<string, unknown> | null;
  outputExpiresAfterSeconds: number | null;
  gatewayOptions: Record<string, unknown>;
  headers: Record<string, string>;
  /**
   * Turns the credentials of the create call into a target that the batch can use until it ends. Stores a secret if
   * necessary.
   */
  target: (unit: UnitOfWork, batchId: string) => Promise<BatchTarget>;
};

export type BatchListQuery = {
  workspaceId: string;
  after: string | null;
  before?: string | null;
  endpoint?: string;
  limit: number;
};

export type Batches = {
  /** Creates a batch, in time that does not depend on its size. A worker does the rest. Throws like `admitBatch`. */
  create(
    identity: CallIdentity,
    metadata: EventMetadata,
    batch: NewBatch,
  ): Promise<{ batch: OpenAiBatch; replayed: boolean }>;
  /**
   * Newest first: those after the batch with the ID `after`, or the last ones before the batch `before`, which then come
   * oldest first. Returns one more than `limit` if there are more. `endpoint`: only batches with it.
   */
  list(query: BatchListQuery): Promise<BatchRow[]>;
  /** Throws `not_found` for an unknown batch or one of another workspace. */
  retrieve(workspaceId: string, id: string): Promise<BatchRow>;
  /** The batch with its progress, and why it makes less than it could. Throws like `retrieve`. */
  look(workspaceId: string, id: string): Promise<BatchDetail>;
  /** Cancelling twice succeeds twice. Throws `not_found` like `retrieve`, `conflict` when it is too late. */
  cancel(workspaceId: string, id: string, metadata: EventMetadata): Promise<BatchRow>;
  /**
   * `pause`: no line is started until `resume`. Running lines continue, and the deadline does not change. Repeating
   * either command succeeds. Throws `not_found` like `retrieve`, `conflict` for a batch that is cancelling, finalizing
   * or has ended, and for one that would be resumed at a bound that it has reached.
   */
  control(
    command: Extract<BatchCommand, { type: 'pause' | 'resume' }>,
    batch: { workspaceId: string; id: string },
    metadata: EventMetadata,
  ): Promise<BatchRow>;
};

export function createBatches(deps: {
  db: Kysely<Database>;
  eventLog: EventLog;
  queue: JobQueue;
  /** After this time the unfinished lines of a batch expire, whatever its completion window. */
  expiresAfterMs: number;
  limits: BatchLimits;
  releaseTarget: (unit: UnitOfWork, batch: BatchRow) => Promise<void>;
}): Batches {
  const { db, eventLog, queue, expiresAfterMs, limits } = deps;
  const retrieve = async (workspaceId: string, id: string): Promise<BatchRow> => {
    const batch = await findBatch(db, workspaceId, id);
    if (!batch) throw noSuchBatch(id);
    return batch;
  };
  return {
    async create(identity, metadata, batch) {
      const { id = newId('batch_'), also } = batch;
      const work = { ...metadata, correlation_id: id };
      const command = {
        workspaceId: identity.workspaceId,
        streams: [id, ...(also?.streams ?? [])],
        newStreams: batch.id === undefined ? [id] : [],
        metadata: work,
      };
      const result = await transactOnce(eventLog, identity, command, async (unit) => {
        await admitBatch(unit.tx, identity.workspaceId, limits);
        await also?.run(unit, id);
        const expiresAt = new Date(unit.now.getTime() + expiresAfterMs);
        const seconds = batch.outputExpiresAfterSeconds;
        const row = await unit.append(batchModel, id, [
          {
            type: 'batch.created',
            data: {
              input_file_id: batch.inputFileId,
              endpoint: batch.endpoint,
              completion_window: batch.completionWindow,
              metadata: batch.metadata,
              expires_at: expiresAt.toISOString(),
              output_expires_after: seconds === null ? null : { anchor: 'created_at', seconds },
              target: await batch.target(unit, id),
              gateway_options: batch.gatewayOptions,
              headers: batch.headers,
            },
          },
        ]);
        await sendTickets(queue, unit.tx, await openTurn(unit.tx, row, batch.inputBytes), 1);
        return { status: 200, body: toOpenAiBatch(row) };
      });
      return { batch: result.body, replayed: result.replayed };
    },
    async list({ workspaceId, after, before = null, endpoint, limit }) {
      const order = before === null ? 'desc' : 'asc';
      let query = db
        .selectFrom('batch')
        .selectAll()
        .where('workspace_id', '=', workspaceId)
        .orderBy('created_at', order)
        .orderBy('id', order)
        .limit(limit + 1);
      if (endpoint !== undefined) query = query.where('endpoint', '=', endpoint);
      const place = before ?? after;
      if (place !== null) {
        const cursor = await findBatch(db, workspaceId, place);
        if (!cursor) {
          const param = before === null ? 'after' : 'before';
          const message = `There is no batch '${place}'. Set '${param}' to the ID of a batch on the previous page.`;
          throw new GatewayError('invalid_request', 'invalid_value', message, { param });
        }
        const side = before === null ? '<' : '>';
        query = query.where((of) => of(of.refTuple('created_at', 'id'), side, of.tuple(cursor.created_at, cursor.id)));
      }
      return await query.execute();
    },
    retrieve,
    async look(workspaceId, id) {
      const batch = await retrieve(workspaceId, id);
      const waits = await findBatchWaits(db, batch);
      return { ...toOpenAiBatch(batch), waits, gateway: await findBatchProgress(db, batch, waits) };
    },
    async control(command, { workspaceId, id }, metadata) {
      return await eventLog.transact(commandOn({ workspaceId, id }, metadata), async (unit) => {
        const before = await unit.load(batchModel, id);
        if (!before || before.workspace_id !== workspaceId) throw noSuchBatch(id);
        const events = decideBatch(before, command, unit.now);
        return events.length === 0 ? before : await appendAndFollow(deps, unit, before, events);
      });
    },
    async cancel(workspaceId, id, metadata) {
      return await eventLog.transact(commandOn({ workspaceId, id }, metadata), async (unit) => {
        const before = await unit.load(batchModel, id);
        if (!before || before.workspace_id !== workspaceId) throw noSuchBatch(id);
        const events = decideBatch(before, { type: 'cancel' }, unit.now);
        if (events.length === 0) return before;
        // It ends at once if none of its lines is running. Otherwise its last chunk ends it, or the end of the grace period.
        return await closeIfOver(deps, unit, await appendAndFollow(deps, unit, before, events));
      });
    },
  };
}

const commandOn = ({ workspaceId, id }: { workspaceId: string; id: string }, metadata: EventMetadata) => ({
  workspaceId,
  streams: [id],
  model: batchModel,
  metadata: { ...metadata, correlation_id: id },
});

async function findBatch(db: Kysely<Database>, workspaceId: string, id: string): Promise<BatchRow | undefined> {
  return await db
    .selectFrom('batch')
    .selectAll()
    .where('id', '=', id)
    .where('workspace_id', '=', workspaceId)
    .executeTakeFirst();
}

/** OpenAI's text (BATCH-9). */
function noSuchBatch(id: string): GatewayError {
  return new GatewayError('not_found', null, `No batch found with id '${id}'.`, { param: 'batch_id' });
}
