import type { Kysely } from 'kysely';
import { z } from 'zod';
import type { Batches } from '#libs/batches/batches.ts';
import { readFailures, readLine, readLines } from '#libs/batches/read-lines.ts';
import type { BatchRow } from '#libs/batches/batch-model.ts';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { BatchFailures, BatchLineDetails, BatchLineList, BatchLineListQuery } from '#libs/contracts/batch-lines.ts';
import type { Database } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import type { Files } from '#libs/files/files.ts';
import { callerOf } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { findLineLog } from '#libs/request-log/read-log.ts';
import { toLogRecord } from '#libs/request-log/to-log-record.ts';

type Deps = { db: Kysely<Database>; batches: Batches; files: Files; blobs: BlobStore };

/**
 * The lines of a batch, while it runs and after it has ended, and what made lines fail. Results have no workspace, so they
 * are read as the system once `Batches.retrieve` has found the batch in the caller's. Errors: not_found, conflict
 * (`results_not_kept`).
 */
export function batchLineRoutes({ db, batches, files, blobs }: Deps): Route[] {
  const inputBlob = async (batch: BatchRow): Promise<string | null> => {
    const file = await files.find(batch.workspace_id, batch.input_file_id);
    return file === undefined || file.deleted_at !== null ? null : file.blob;
  };
  const lineDeps = { db, blobs, inputBlob };
  const about = { method: 'GET', tag: 'Batches', scope: 'batches.read' } as const;
  return [
    {
      ...about,
      path: '/v1/batches/:batch_id/lines',
      operationId: 'listBatchLines',
      summary: 'List and search the lines of a batch',
      responses: { 200: { description: 'A page of lines, by number.', schema: BatchLineList } },
      ...withInput(
        { params: z.object({ batch_id: z.string() }), query: BatchLineListQuery },
        async ({ params, query }, request, response) => {
          const batch = await batches.retrieve(callerOf(request).workspaceId, params.batch_id);
          const after = lineNumber(query.after ?? '0', 'after');
          const page = await asSystem(() => readLines(lineDeps, batch, { ...query, after }));
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
      summary: 'Retrieve one line of a batch with its request, its result and its record in the request log',
      responses: { 200: { description: 'The line.', schema: BatchLineDetails } },
      ...withInput(
        { params: z.object({ batch_id: z.string(), line: z.string() }) },
        async ({ params }, request, response) => {
          const { workspaceId } = callerOf(request);
          const batch = await batches.retrieve(workspaceId, params.batch_id);
          const line = lineNumber(params.line, 'line');
          const found = await asSystem(() => readLine(lineDeps, batch, line));
          const row =
            found.outcome === 'pending' ? undefined : await findLineLog(db, workspaceId, { batchId: batch.id, line });
          const record = row && toLogRecord(row);
          const log = record && {
            id: record.id,
            attempts: record.attempts,
            fallbacks: record.fallbacks,
            duration_ms: record.duration_ms,
            cost: record.cost,
            provider: record.provider,
            trace_id: record.trace_id,
            created_at: record.created_at,
          };
          response.json({ ...found, log: log ?? null });
        },
      ),
    },
    {
      ...about,
      path: '/v1/batches/:batch_id/failures',
      operationId: 'listBatchFailures',
      summary: 'Count the failed lines of a batch by what made them fail',
      responses: { 200: { description: 'The causes, most lines first.', schema: BatchFailures } },
      ...withInput({ params: z.object({ batch_id: z.string() }) }, async ({ params }, request, response) => {
        const batch = await batches.retrieve(callerOf(request).workspaceId, params.batch_id);
        response.json(await asSystem(() => readFailures(db, batch)));
      }),
    },
  ];
}

function lineNumber(text: string, param: string): number {
  if (/^\d{1,10}$/.test(text)) return Number(text);
  const message = `Invalid '${param}': expected the number of a line, such as 1.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param });
}
