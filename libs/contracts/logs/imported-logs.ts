import { z } from 'zod';
import { workspaceChoice } from './call-filters.ts';
import { anyMetadata, integer, text } from '../scalars.ts';

// POST /logs: calls that were made elsewhere.

const requestsMax = 1_000;

/** Enough for this many records of about 4 KiB and 60 members each, which are checked in 50 ms. */
export const importedLogsBody = { bodySizeBytesMax: 4_194_304, bodyMembersMax: 60_000 };
const traceText = () => text({ min: 1, max: 256 }).optional();
const members = () => z.record(z.string(), z.unknown());

/** Traces are members of the metadata, as clients send them. All other members are metadata of the call. */
const ImportedMetadata = anyMetadata().and(
  z.looseObject({ trace_id: traceText(), span_id: traceText(), parent_span_id: traceText(), span_name: traceText() }),
);

export const ImportedLog = z.object({
  request: z.object({
    url: z
      .url({ protocol: /^https?$/ })
      .max(2_048)
      .describe('The URL that was called.'),
    provider: text({ min: 1, max: 100 })
      .optional()
      .describe('The ID of a provider. Default: determined from the host of `url`.'),
    method: z.enum(['GET', 'POST', 'PUT', 'DELETE', 'PATCH']).default('POST'),
    headers: members().optional().describe('Accepted, but headers are not recorded.'),
    body: members().describe('The request body. Its `model` is recorded.'),
  }),
  response: z.object({
    status: integer({ min: 100, max: 599 }).default(200),
    headers: members().optional().describe('Accepted, but headers are not recorded.'),
    body: members().describe('The response body. Its `model` and `usage` are recorded and priced.'),
    response_time: integer({ min: 0, max: 86_400_000 }).default(0).describe('Milliseconds.'),
  }),
  metadata: ImportedMetadata.optional(),
});
export type ImportedLog = z.output<typeof ImportedLog>;

export const ImportedLogs = z.union([ImportedLog, z.array(ImportedLog).min(1).max(requestsMax)]);

export const ImportedLogsQuery = z.object(workspaceChoice);

export const ImportedLogsAnswer = z.object({
  status: z.literal('success'),
  recorded: z.int().describe('The number of records added to the request log.'),
});
