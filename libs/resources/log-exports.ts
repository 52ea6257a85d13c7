import { sql } from 'kysely';
import { LogExportObject, logExportFields, type ExportField } from '#libs/contracts/logs/log-exports.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { defineKind } from '#libs/resources/define-kind.ts';
import { resourceModel } from '#libs/records/resource-model.ts';
import type { Authors } from '#libs/records/resource-row.ts';

export type LogExportData = Authors & {
  /** As the client sent them. */
  filters: Record<string, unknown>;
  requested_data: ExportField[];
  description?: string;
  format?: 'ndjson' | 'csv' | 'parquet';
  /** Absent: a draft. */
  status?: 'in_progress' | 'success' | 'failed' | 'stopped';
  total?: number | null;
  /** ISO 8601: later records are not included, so that the export ends. */
  until?: string;
  error?: string;
};

/** The maximum number of exports in a workspace; deleting one frees its place. */
const exportsMax = 200;

const merge = (data: LogExportData, event: { data: object }): LogExportData => ({ ...data, ...event.data });

/**
 * An export of the request log to a file. It is created as a draft, started by a separate route, and written by a worker.
 */
export const logExportKind = defineKind<typeof logExportFields, LogExportData>({
  noun: 'log_export',
  idPrefix: 'export_',
  area: 'logs',
  texts: {
    list: { description: 'Includes the status, size and number of records of each export.' },
    retrieve: {
      description:
        'Returns the status, filters and columns, and the number of records written so far. For drafts, `total` is ' +
        'the number of records that match.',
    },
    delete: {
      description: 'Also deletes the file, and its link stops working.',
      errors: { log_export_in_progress: 'a worker is writing the export: cancel it first' },
    },
  },
  path: '/v1/logs/exports',
  names: {
    one: 'log export',
    many: 'log exports',
    command: 'log-exports',
    tag: 'Log exports',
    about: 'Files with records of the request log, written by a worker.',
    object: 'export',
  },
  fields: logExportFields,
  // The routes that create and change exports also count the matching records (apps/api/logs/log-export-routes.ts).
  creation: false,
  changes: false,
  locks: (workspaceId) => [`log-exports:${workspaceId}`],
  history: { events: { updated: merge, started: merge, stopped: merge, succeeded: merge, failed: merge } },

  async check(input, { unit, workspaceId, row }) {
    if (row !== null) {
      if (row.data.status === undefined) return { data: input as Partial<LogExportData> };
      const message = `The export '${row.id}' is ${row.data.status}: only drafts can be changed. Create another export.`;
      throw new GatewayError('conflict', 'log_export_not_draft', message);
    }
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from resource
      where kind = 'log_export' and workspace_id = ${workspaceId} and deleted_at is null`.execute(unit.tx);
    if ((rows[0]?.count ?? 0) < exportsMax) return { data: input as Partial<LogExportData> };
    const message = `This workspace already has ${exportsMax} exports, the maximum. Delete one first.`;
    throw new GatewayError('quota_exceeded', 'too_many_log_exports', message);
  },

  removal: {
    check({ id, data }) {
      if (data.status !== 'in_progress') return;
      const message = `The export '${id}' is in progress. Cancel it before you delete it.`;
      throw new GatewayError('conflict', 'log_export_in_progress', message);
    },
  },

  async related(rows, { db }) {
    const { rows: written } = await sql<{ export_id: string; rows: number; bytes: number }>`
      select export_id, sum(rows)::float8 as rows, sum(size_bytes)::float8 as bytes from log_export_part
      where export_id = any(${rows.map(({ id }) => id)}::text[]) group by 1`.execute(db);
    const byId = new Map(written.map((each) => [each.export_id, each]));
    return ({ id }) => ({ total_records: byId.get(id)?.rows ?? 0, size_bytes: byId.get(id)?.bytes ?? 0 });
  },

  view(row) {
    const { workspace_id, data } = row;
    return {
      organisation_id: organisationId,
      workspace_id,
      filters: data.filters,
      requested_data: data.requested_data,
      format: data.format ?? 'ndjson',
      status: data.status ?? 'draft',
      description: data.description ?? '',
      error: data.error ?? null,
      total: data.total ?? null,
      total_records: 0,
      size_bytes: 0,
      created_by: data.created_by ?? null,
    };
  },
  viewSchema: LogExportObject,
});

export const logExportModel = resourceModel([logExportKind]);
