import type { Response } from 'express';
import { z } from 'zod';
import type { BatchRow } from '#libs/batches/batch/batch-model.ts';
import type { Batches } from '#libs/batches/batch/batches.ts';
import { refuseDroppedResults } from '#libs/batches/look/read-lines.ts';
import type { LineDeps } from '#libs/batches/results/scan-requests.ts';
import { parseCursor, streamResults, type StreamQuery } from '#libs/batches/look/stream-results.ts';
import { BatchResultsQuery } from '#libs/contracts/batches/batch-lines.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import { sendPieces } from '#libs/http/answers/send-pieces.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import type { Turns } from '#libs/kernel/sharing/turns.ts';
import type { CountRead } from '../organisation/guard-keys.ts';

export type ResultStreamDeps = {
  batches: Batches;
  lines: LineDeps;
  /** Turns of streams of results. */
  resultStreams: Turns;
  memory: MemoryBudget;
  stallTimeoutMs: number;
  countRead: CountRead;
};

export const resultErrors = {
  results_not_kept: 'the results of the batch were deleted after their retention period; download its files instead',
};

/** The results of a batch as they arrive. Errors: not_found, conflict (`results_not_kept`), rate_limited. */
export const streamBatchResults = (deps: ResultStreamDeps): Route => ({
  method: 'GET',
  tag: 'Batches',
  scope: 'batches.read',
  path: '/v1/batches/:batch_id/results',
  operationId: 'streamBatchResults',
  summary: 'Stream the results of a batch as they arrive',
  description:
    'Returns one JSON object per line: the lines of the output and error file, each with a `cursor`, in the order in ' +
    'which they were settled. The batch can still be running. With `wait`, the response stays open until no result ' +
    'has arrived for that many seconds, for 10 minutes at most. To continue, send the last `cursor` as `after`. The ' +
    'last object of a batch that has ended is `{"object":"batch.results_end"}`.',
  errors: resultErrors,
  responses: {
    200: { description: 'The results, one JSON object per line.', contentType: 'application/x-ndjson' },
  },
  ...withInput(
    { params: z.object({ batch_id: z.string() }), query: BatchResultsQuery },
    async ({ params, query }, request, response) => {
      const { workspaceId } = getCaller(request);
      const batch = await deps.batches.retrieve(workspaceId, params.batch_id);
      const { status = null, wait } = query;
      const wanted = { after: parseCursor(query.after ?? null), status, waitMs: wait * 1_000 };
      await asSystem(() => refuseDroppedResults(deps.lines.db, batch));
      deps.countRead(request, 'batch_results', batch.id);
      const { signal } = abortWhenClientLeaves(response);
      await deps.resultStreams.run(workspaceId, () => sendResults(deps, batch, wanted, response, signal), signal);
    },
  ),
});

async function sendResults(
  { batches, lines, memory, stallTimeoutMs }: ResultStreamDeps,
  batch: BatchRow,
  query: StreamQuery,
  response: Response,
  signal: AbortSignal,
): Promise<void> {
  const deps = {
    ...lines,
    read: asSystem,
    reload: () => batches.retrieve(batch.workspace_id, batch.id),
    async reserve(bytes: number) {
      const lease = memory.open(batch.workspace_id);
      await lease.reserve(bytes, signal);
      return () => lease.release();
    },
  };
  response.setHeader('content-type', 'application/x-ndjson');
  response.flushHeaders();
  try {
    await sendPieces(response, streamResults(deps, batch, query, signal), stallTimeoutMs);
  } catch (error) {
    if (!response.destroyed) response.destroy();
    if (!signal.aborted) throw error;
  }
}
