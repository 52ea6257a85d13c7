import type { ComputedField, ExportField } from '#libs/contracts/logs/log-exports.ts';
import { columnList, type Column } from '../columns.ts';
import { classifyCallOutcome } from '../row/call-outcome.ts';
import { getLogUuidTime, toLogId } from '../row/log-id.ts';
import type { LogListRow } from './read-log.ts';
import type { RecordedTexts } from '../bodies/recorded-bodies.ts';
import { toBodyObject } from './to-log-details.ts';

/** A record with its bodies, if they were recorded and a column asks for them. */
export type ExportedRow = LogListRow & { bodies?: RecordedTexts | null };

type ExportColumn = {
  /** The type in a format with types. JSON is an object. */
  type: 'STRING' | 'BOOLEAN' | 'DOUBLE' | 'JSON';
  read: (row: ExportedRow) => unknown;
};

const computed: Readonly<Record<ComputedField, ExportColumn>> = {
  id: { type: 'STRING', read: ({ id }) => toLogId(id) },
  created_at: { type: 'STRING', read: ({ id }) => new Date(getLogUuidTime(id)).toISOString() },
  request: {
    type: 'JSON',
    read: ({ method, path, bodies }) => ({ method, url: path, body: toBodyObject(bodies?.request) }),
  },
  response: {
    type: 'JSON',
    read: ({ status, error_code, bodies }) => ({ status, error_code, body: toBodyObject(bodies?.response) }),
  },
  is_success: { type: 'BOOLEAN', read: (row) => classifyCallOutcome(row) === 'succeeded' },
  ai_model: { type: 'STRING', read: ({ response_model, model }) => response_model ?? model },
  total_units: {
    type: 'DOUBLE',
    read: ({ input_tokens, output_tokens }) =>
      input_tokens === null && output_tokens === null ? null : (input_tokens ?? 0) + (output_tokens ?? 0),
  },
  cost_currency: { type: 'STRING', read: () => 'USD' },
  response_time: { type: 'DOUBLE', read: ({ duration_ms }) => Math.round(duration_ms) },
};

/** The types of columns that are not exported as texts. */
const types: Partial<Record<Column['type'], ExportColumn['type']>> = {
  integer: 'DOUBLE',
  float: 'DOUBLE',
  cents: 'DOUBLE',
  boolean: 'BOOLEAN',
  json: 'JSON',
};

/** The columns that an export can have. Numbers are DOUBLE: token counts are exact up to 2^53. */
export const exportColumns = {
  ...computed,
  ...Object.fromEntries(
    columnList.flatMap(([name, { type, exportedAs }]) => {
      if (exportedAs === undefined) return [];
      const read = ({ [name]: value }: ExportedRow): unknown =>
        type === 'cents' && value !== null ? Number(value) : value;
      return [[exportedAs, { type: types[type] ?? 'STRING', read }]];
    }),
  ),
} as Readonly<Record<ExportField, ExportColumn>>;

/** Columns that hold bodies. */
export const bodyFields: readonly ExportField[] = ['request', 'response'];
