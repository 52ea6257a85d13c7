import { z } from 'zod';
import { columnList, type ColumnName, type Columns } from '#libs/request-log/columns.ts';
import { callFilters, moment } from './call-filters.ts';
import { optionalInteger } from '../lists.ts';
import { text } from '../scalars.ts';

// /logs/exports: the request log as files.

/** The fields that are computed for an export. */
const computedFields = [
  'id',
  'created_at',
  'request',
  'response',
  'is_success',
  'ai_model',
  'total_units',
  'cost_currency',
  'response_time',
] as const;
export type ComputedField = (typeof computedFields)[number];
export type ExportField = ComputedField | Extract<Columns[ColumnName], { exportedAs: string }>['exportedAs'];

const exportFields: readonly ExportField[] = [
  ...computedFields,
  ...columnList.flatMap(([, { exportedAs }]) => (exportedAs === undefined ? [] : [exportedAs as ExportField])),
];

/** In a JSON body, a filter can also be a number, a list or an object, where a query string has text. */
const asQueryText = (value: unknown): unknown => {
  if (typeof value === 'number') return String(value);
  if (Array.isArray(value)) return value.map(String).join(',');
  return typeof value === 'object' && value !== null ? JSON.stringify(value) : value;
};
export const inBody = (fields: z.ZodRawShape): z.ZodRawShape =>
  Object.fromEntries(
    Object.entries(fields).map(([name, field]) => [name, z.preprocess(asQueryText, field).optional()]),
  );

/** The filters of an export, which must all match; stored as they were sent, and read again when it runs. */
export const LogExportFilters = z.strictObject({
  workspace_slug: text({ min: 1, max: 200 })
    .optional()
    .describe('An ID or slug, as in analytics. If the body has a workspace_id, it must be the same workspace.'),
  ...inBody(callFilters),
  time_of_generation_min: moment().optional().describe('Recorded at or after this time, in ISO 8601 or Unix seconds.'),
  time_of_generation_max: moment().optional().describe('Recorded at or before this time.'),
  current_page: optionalInteger({ min: 0, max: 1_000_000 }).describe(
    'The number of pages of `page_size` rows to skip.',
  ),
  page_size: optionalInteger({ min: 1, max: 100_000_000 }).describe('The maximum number of rows. Default: all.'),
});

export const logExportFields = {
  filters: LogExportFilters,
  requested_data: z
    .array(z.enum(exportFields))
    .min(1)
    .max(exportFields.length)
    .describe('The columns. `cost` is in US cents.'),
  description: text({ max: 1_000 }).optional(),
  format: z.enum(['ndjson', 'csv', 'parquet']).optional().describe('Default: `ndjson`.'),
};

export const LogExportObject = z.object({
  id: z.string(),
  object: z.literal('export'),
  organisation_id: z.string(),
  workspace_id: z.string(),
  filters: z.record(z.string(), z.unknown()),
  requested_data: z.array(z.enum(exportFields)),
  format: z.enum(['ndjson', 'csv', 'parquet']),
  status: z.enum(['draft', 'in_progress', 'success', 'failed', 'stopped']),
  description: z.string(),
  error: z.string().nullable().describe('Why the export failed.'),
  total: z
    .int()
    .nullable()
    .describe(
      'The number of records that matched when the export was created or changed. Null if there are too many to count.',
    ),
  total_records: z.int().describe('Records written so far.'),
  size_bytes: z.int().describe('Bytes written so far.'),
  created_at: z.string(),
  last_updated_at: z.string(),
  created_by: z.string().nullable(),
});
