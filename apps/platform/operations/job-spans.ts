import { sql, type Kysely } from 'kysely';
import { LRUCache } from 'lru-cache';
import type { Database } from '#libs/database/schema.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { jobSpanId } from '#libs/kernel/trace-ids.ts';
import type { EndedJob, OnJobEnded } from '#libs/queue/ended-job.ts';
import type { EndedSpan, SpanAttributes, SpanTrace } from '#libs/request-log/record/call-spans.ts';
import type { Telemetry } from './telemetry.ts';

/** The record of a job: the IDs in payloads, and their names in spans. Other payloads have no record. */
const recordIds: Readonly<Record<string, string>> = {
  batch_id: 'sluice.batch_id',
  job_id: 'sluice.fine_tuning_job_id',
  export_id: 'sluice.export_id',
  record_id: 'sluice.record_id',
};

type JobTrace = SpanTrace & { workspaceId: string };

const knownRecordsMax = 1_000;
/**
 * The maximum of concurrent lookups. Spans of more jobs than that, which end while the database is slow, are left out.
 */
const lookupsMax = 100;

/**
 * Makes a span of every job that ended here, in the trace of the request that created its record. That trace is read
 * once for each record; a span whose trace cannot be read is left out. Never throws, and no job waits for it.
 */
export function createJobSpans({
  db,
  telemetry,
  logger,
}: {
  db: Kysely<Database>;
  logger: Logger;
  telemetry: Pick<Telemetry, 'recordJob'>;
}): OnJobEnded {
  const traces = new LRUCache<string, JobTrace>({ max: knownRecordsMax });
  let lookups = 0;

  async function findTrace(name: string, id: string): Promise<JobTrace | null> {
    const known = traces.get(id);
    if (known !== undefined) return known;
    if (lookups >= lookupsMax) return null;
    lookups += 1;
    try {
      const found = await readTrace(db, name, id);
      if (found !== null) traces.set(id, found);
      return found;
    } finally {
      lookups -= 1;
    }
  }

  return (job) => {
    const payload = job.payload as Record<string, unknown>;
    const [name, id] = Object.entries(payload).find(([field]) => field in recordIds) ?? [];
    if (name === undefined || typeof id !== 'string') {
      telemetry.recordJob(toJobSpan(job, null), { traceId: job.id, parentSpanId: null });
      return;
    }
    findTrace(name, id).then(
      (trace) => {
        if (trace !== null) telemetry.recordJob(toJobSpan(job, trace), trace);
      },
      (error: unknown) => logger.debug({ err: error, job_id: job.id }, 'a span of a job was dropped'),
    );
  };
}

/** The trace of the request that created a record. Lines of a batch have the same (libs/batches/lines/call-line.ts). */
async function readTrace(db: Kysely<Database>, name: string, id: string): Promise<JobTrace | null> {
  if (name !== 'batch_id') {
    const [created] = await readStream(db, id, 0, 1);
    if (created === undefined) return null;
    return { traceId: created.metadata.trace_id ?? id, parentSpanId: null, workspaceId: created.workspaceId };
  }
  const { rows } = await sql<JobTrace>`
    select coalesce(headers ->> 'trace_id', id) as "traceId", headers ->> 'span_id' as "parentSpanId",
      workspace_id as "workspaceId"
    from batch where id = ${id}`.execute(db);
  return rows[0] ?? null;
}

function toJobSpan(job: EndedJob, trace: JobTrace | null): EndedSpan {
  const { queue, id, retryCount, waitedMs, startedAtMs, endedAtMs, outcome, error } = job;
  const attributes: SpanAttributes = {
    'sluice.queue': queue,
    'sluice.job.id': id,
    'sluice.job.retries': retryCount,
    'sluice.job.outcome': outcome,
  };
  if (waitedMs !== null) attributes['sluice.job.wait_ms'] = waitedMs;
  if (trace !== null) attributes['sluice.workspace_id'] = trace.workspaceId;
  for (const [field, value] of Object.entries(job.payload)) {
    const name = recordIds[field];
    if (name !== undefined && typeof value === 'string') attributes[name] = value;
    if (field === 'chunk' && typeof value === 'number') attributes['sluice.chunk'] = value;
  }
  const failure = error === null ? null : toFailure(error);
  if (failure !== null) attributes['error.type'] = failure;
  return {
    spanId: jobSpanId(job),
    name: queue,
    kind: 'consumer',
    startMs: startedAtMs,
    endMs: endedAtMs,
    attributes,
    error: failure,
  };
}

/** Only the kind of the error, because a message can quote texts of a provider or a caller. */
function toFailure(error: unknown): string {
  if (error instanceof GatewayError) return error.code ?? error.kind;
  return error instanceof Error ? error.name : 'error';
}
