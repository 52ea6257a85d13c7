import type { ExportField } from '#libs/contracts/log-exports.ts';
import { toLogId } from '../row/log-id.ts';
import type { LogListRow } from './read-log.ts';
import type { RecordedTexts } from '../bodies/recorded-bodies.ts';
import { bodyOf, isSuccessful } from './to-log-details.ts';
import { toLogRecord } from './to-log-record.ts';

/** A record with its bodies, where they were recorded and a column asks for them. */
export type ExportedRow = LogListRow & { bodies?: RecordedTexts | null };

type Column = {
  /** How a format with types stores it. JSON is an object. */
  type: 'STRING' | 'BOOLEAN' | 'DOUBLE' | 'JSON';
  read: (row: ExportedRow) => unknown;
};

/** The columns that an export may have. Numbers are DOUBLE: token counts are exact up to 2^53. */
export const exportColumns: Readonly<Record<ExportField, Column>> = {
  id: { type: 'STRING', read: ({ id }) => toLogId(id) },
  trace_id: { type: 'STRING', read: ({ trace_id }) => trace_id },
  created_at: { type: 'STRING', read: (row) => toLogRecord(row).created_at },
  request: { type: 'JSON', read: ({ method, path, bodies }) => ({ method, url: path, body: bodyOf(bodies?.request) }) },
  response: {
    type: 'JSON',
    read: ({ status, error_code, bodies }) => ({ status, error_code, body: bodyOf(bodies?.response) }),
  },
  is_success: { type: 'BOOLEAN', read: isSuccessful },
  ai_org: { type: 'STRING', read: ({ provider }) => provider },
  ai_model: { type: 'STRING', read: ({ response_model, model }) => response_model ?? model },
  req_units: { type: 'DOUBLE', read: ({ input_tokens }) => input_tokens },
  res_units: { type: 'DOUBLE', read: ({ output_tokens }) => output_tokens },
  total_units: {
    type: 'DOUBLE',
    read: ({ input_tokens, output_tokens }) =>
      input_tokens === null && output_tokens === null ? null : (input_tokens ?? 0) + (output_tokens ?? 0),
  },
  request_url: { type: 'STRING', read: ({ path }) => path },
  cost: { type: 'DOUBLE', read: ({ cost }) => (cost === null ? null : Number(cost)) },
  cost_currency: { type: 'STRING', read: () => 'USD' },
  response_time: { type: 'DOUBLE', read: ({ duration_ms }) => Math.round(duration_ms) },
  response_status_code: { type: 'DOUBLE', read: ({ status }) => status },
  mode: { type: 'STRING', read: ({ mode }) => mode },
  config: { type: 'STRING', read: ({ config }) => config },
  prompt_slug: { type: 'STRING', read: ({ prompt_slug }) => prompt_slug },
  metadata: { type: 'JSON', read: ({ metadata }) => metadata },
};

/** Columns that hold bodies. */
export const bodyFields: readonly ExportField[] = ['request', 'response'];
