import path from 'node:path';
import { performance } from 'node:perf_hooks';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { newId } from '#libs/kernel/ids.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { runLogExport } from '#libs/request-log/read/run-log-export.ts';
import { logExportModel } from '#libs/resources/log-exports.ts';
import { metadata } from './append-events.ts';
import { dayMs, hourMs, workspaceId, writeCalls } from './analytics-data.ts';

type Format = 'ndjson' | 'parquet';
export type ExportFigures = { rows: number; rowsPerSecond: Record<Format, number>; bytes: Record<Format, number> };

const fields = [
  'id',
  'created_at',
  'ai_org',
  'ai_model',
  'total_units',
  'cost',
  'response_time',
  'is_success',
  'metadata',
];

/** Exports the calls of some hours as a worker does, in this process. */
export async function measureExports(
  { connectionString, directory }: { connectionString: string; directory: string },
  { hours }: { hours: number },
  onProgress: (text: string) => void,
): Promise<ExportFigures> {
  const logger = createLogger({ name: 'bench', level: 'error' });
  const pool = createPool({ connectionString, applicationName: 'sluice-bench', transactionTimeoutMs: 0 }, logger);
  const db = createDatabase(pool);
  try {
    onProgress('exports: calls of the log');
    const from = Math.floor(Date.now() / dayMs - 1) * dayMs;
    await writeCalls(db, { from, to: from + hours * hourMs });
    await pool.query('vacuum analyze request_log_row');
    const eventLog = createEventLog(db);
    const blobs = await createDiskBlobStore({ folder: path.join(directory, 'exports') });
    const run = async (format: Format): Promise<{ rows: number; bytes: number; perSecond: number }> => {
      onProgress(`exports: ${format}`);
      const id = newId('export_');
      await eventLog.transact({ workspaceId, streams: [id], metadata }, (unit) =>
        unit.append(logExportModel, id, [
          { type: 'log_export.created', data: { filters: {}, requested_data: fields, format } },
          { type: 'log_export.started', data: { status: 'in_progress', until: new Date().toISOString() } },
        ]),
      );
      const limits = { rowsMax: 10_000_000 };
      const startedMs = performance.now();
      await runLogExport(
        { db, eventLog, blobs, logger, secrets: { readOwned: async () => undefined }, limits },
        id,
        new AbortController().signal,
      );
      const seconds = (performance.now() - startedMs) / 1_000;
      const parts = await db.selectFrom('log_export_part').selectAll().where('export_id', '=', id).execute();
      const rows = parts.reduce((sum, part) => sum + part.rows, 0);
      if (rows === 0) throw new Error(`the export as ${format} has no rows`);
      return { rows, bytes: parts.reduce((sum, part) => sum + part.size_bytes, 0), perSecond: rows / seconds };
    };
    await run('ndjson'); // warms up
    const [ndjson, parquet] = [await run('ndjson'), await run('parquet')];
    return {
      rows: ndjson.rows,
      rowsPerSecond: { ndjson: ndjson.perSecond, parquet: parquet.perSecond },
      bytes: { ndjson: ndjson.bytes, parquet: parquet.bytes },
    };
  } finally {
    await db.destroy();
  }
}
