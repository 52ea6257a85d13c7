import type { Kysely } from 'kysely';
import { z } from 'zod';
import { isLineSearch, readFailures, readLine, readLines } from '#libs/batches/look/read-lines.ts';
import type { LineDeps } from '#libs/batches/results/scan-requests.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import {
  BatchFailures,
  BatchLineDetails,
  BatchLineList,
  BatchLineListQuery,
} from '#libs/contracts/batches/batch-lines.ts';
import type { Database } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import type { Files } from '#libs/files/files.ts';
import type { Caller } from '#libs/http/caller.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { hasScope } from '#libs/http/rights.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Turns } from '#libs/kernel/sharing/turns.ts';
import { resultErrors, streamBatchResults, type ResultStreamDeps } from './result-stream.ts';
import { findLineLog } from '#libs/request-log/read/read-log.ts';
import type { RecordedTexts } from '#libs/request-log/bodies/recorded-bodies.ts';
import { toLogRecord } from '#libs/request-log/read/to-log-record.ts';

export type BatchLineDeps = ResultStreamDeps & { db: Kysely<Database>; searches: Turns };

/** The dependencies for reading lines. The input of a batch is not available if its file was deleted. */
export const createLineDeps = (deps: { db: Kysely<Database>; files: Files; blobs: BlobStore }): LineDeps => ({
  db: deps.db,
  blobs: deps.blobs,
  async inputBlob(batch) {
    const file = await deps.files.find(batch.workspace_id, batch.input_file_id);
    return file === undefined || file.deleted_at !== null ? null : file.blob;
  },
});

/**
 * The lines of a batch, while it runs and after it has ended, and the errors of failed lines. Results have no
 * workspace, so they are read as the system once `Batches.retrieve` has found the batch in the caller's. Errors:
 * not_found, conflict (`results_not_kept`), rate_limited (searches).
 */
export function batchLineRoutes(deps: BatchLineDeps): Route[] {
  const { db, batches, lines, searches, countRead } = deps;
  const about = { method: 'GET', tag: 'Batches', scope: 'batches.read' } as const;
  return [
    {
      ...about,
      path: '/v1/batches/:batch_id/lines',
      operationId: 'listBatchLines',
      summary: 'List and search the lines of a batch',
      description:
        'Ordered by line number, while the batch runs and after it has ended, for as long as its results are kept. A ' +
        'search scans a limited number of lines for each page; continue it with `after`.',
      errors: resultErrors,
      responses: { 200: { description: 'A page of lines, by number.', schema: BatchLineList } },
      ...withInput(
        { params: z.object({ batch_id: z.string() }), query: BatchLineListQuery },
        async ({ params, query }, request, response) => {
          const batch = await batches.retrieve(getCaller(request).workspaceId, params.batch_id);
          const after = lineNumber(query.after ?? '0', 'after');
          const read = () => asSystem(() => readLines(lines, batch, { ...query, after }));
          const { signal } = abortWhenClientLeaves(response);
          const page = isLineSearch(query) ? await searches.run(batch.workspace_id, read, signal) : await read();
          response.json({
            object: 'list',
            data: page.lines,
            first_id: page.lines[0]?.id ?? null,
            last_id: page.searchedLines === 0 ? null : String(page.lastLine),
            has_more: page.hasMore,
            searched_lines: page.searchedLines,
          });
        },
      ),
    },
    {
      ...about,
      path: '/v1/batches/:batch_id/lines/:line',
      operationId: 'retrieveBatchLine',
      summary: 'Retrieve a line of a batch with its request, result and log record',
      description: 'Returns the line of the input file, its result, and a summary of its record in the request log.',
      errors: resultErrors,
      responses: { 200: { description: 'The line.', schema: BatchLineDetails } },
      ...withInput(
        { params: z.object({ batch_id: z.string(), line: z.string() }) },
        async ({ params }, request, response) => {
          const { workspaceId } = getCaller(request);
          const batch = await batches.retrieve(workspaceId, params.batch_id);
          const line = lineNumber(params.line, 'line');
          countRead(request, 'batch_results', batch.id);
          const found = await asSystem(() => readLine(lines, batch, line));
          const find = () => findLineLog(db, workspaceId, { batchId: batch.id, line });
          const { signal } = abortWhenClientLeaves(response);
          const row = found.outcome === 'pending' ? undefined : await searches.run(workspaceId, find, signal);
          const record = row && toLogRecord(row);
          const log = record && {
            id: record.id,
            attempts: record.attempts,
            fallbacks: record.fallbacks,
            duration_ms: record.duration_ms,
            cost_usd: record.cost_usd,
            provider: record.provider,
            trace_id: record.trace_id,
            created_at: record.created_at,
          };
          response.json({ ...found, log: log ?? null });
        },
      ),
    },
    streamBatchResults(deps),
    {
      ...about,
      path: '/v1/batches/:batch_id/failures',
      operationId: 'listBatchFailures',
      summary: 'Count the failed lines of a batch by cause',
      description:
        'Returns up to 50 causes, most frequent first, each with the number of failed lines and the message of the first line.',
      responses: { 200: { description: 'The causes, most lines first.', schema: BatchFailures } },
      ...withInput({ params: z.object({ batch_id: z.string() }) }, async ({ params }, request, response) => {
        const batch = await batches.retrieve(getCaller(request).workspaceId, params.batch_id);
        const read = () => asSystem(() => readFailures(db, batch));
        response.json(await searches.run(batch.workspace_id, read, abortWhenClientLeaves(response).signal));
      }),
    },
  ];
}

function lineNumber(text: string, param: string): number {
  if (/^\d{1,10}$/.test(text)) return Number(text);
  const message = `Invalid '${param}': expected the number of a line, such as 1.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param });
}

type LinePlace = { workspaceId: string; batchId: string | null; line: number | null };
export type ReadLineBodies = (caller: Caller, place: LinePlace) => Promise<RecordedTexts | null>;

/**
 * Reads the request and the answer of a batch line, for its record in the request log. null: it is not a line of a
 * batch, the caller has no right to read batches, or it no longer exists.
 */
export const createLineBodiesReader =
  ({ batches, lines }: Pick<BatchLineDeps, 'batches' | 'lines'>): ReadLineBodies =>
  async (caller, { workspaceId, batchId, line }) => {
    if (batchId === null || line === null || !hasScope(caller, 'batches.read')) return null;
    try {
      const batch = await batches.retrieve(workspaceId, batchId);
      const { request, result } = await asSystem(() => readLine(lines, batch, line));
      return {
        request: toBodyObject(request),
        response: toBodyObject((result as { response?: unknown } | null)?.response),
      };
    } catch (error) {
      if (error instanceof GatewayError) return null;
      throw error;
    }
  };

function toBodyObject(holder: unknown): string | null {
  const body: unknown = typeof holder === 'object' && holder !== null && 'body' in holder ? holder.body : null;
  return body === null ? null : JSON.stringify(body);
}
