import { z } from 'zod';
import { text } from './scalars.ts';

const types = z.enum(['https', 'splunk_hec', 'syslog', 'folder']);
const formats = z.enum(['sluice', 'cloudevents', 'ocsf', 'opentelemetry']);
const selections = z.enum(['all', 'audit', 'refusals']);
const callSelections = z.enum(['none', 'refused', 'all']);

/** Members of the body of POST /siem-destinations. */
export const siemDestinationFields = {
  name: text({ min: 1, max: 200 }),
  type: types.describe(
    '`https`: a POST with JSON lines. `splunk_hec`: the HTTP Event Collector of Splunk. `syslog`: RFC 5424 over TLS. ' +
      "`folder`: the operator's folder, only for the organisation.",
  ),
  url: z
    .string()
    .max(2_048)
    .optional()
    .describe(
      '`https://…`; for syslog `tls://host:6514`. A folder has none. It is shown to everyone who can read the ' +
        'destination, so it must not contain a secret.',
    ),
  format: formats
    .default('sluice')
    .describe(
      'How an event is written: as in `GET /v1/events`, as a CloudEvent 1.0, as an OCSF 1.3.0 event, or as a log record of ' +
        'OpenTelemetry.',
    ),
  events: selections
    .default('all')
    .describe(
      '`audit` leaves out the steps of batches that workers record. `refusals`: rejected requests and sign-ins, and failed guardrails.',
    ),
  calls: callSelections
    .default('none')
    .describe(
      'Which records of live calls are sent, when they are sealed: none, those that Sluice refused or a guardrail failed, ' +
        'or all.',
    ),
  token: text({ min: 1, max: 4_096 })
    .optional()
    .describe(
      'Sent in the header `authorization`, as a bearer token or as Splunk needs it. With a space, such as `ApiKey abc`, ' +
        'it is sent as it is. It is encrypted and never shown again.',
    ),
  ca: text({ min: 1, max: 65_536 })
    .nullish()
    .describe('Certificates in PEM that the server is checked with, instead of those of public authorities.'),
  enabled: z
    .boolean()
    .default(true)
    .describe('A disabled destination keeps its place, and gets the events afterwards.'),
};

/** Times in ISO 8601. */
export const SiemDestinationObject = z.object({
  id: z.string(),
  object: z.literal('siem-destination'),
  workspace_id: z
    .string()
    .nullable()
    .describe('Null: it belongs to the organisation, and gets the events of all workspaces.'),
  name: z.string(),
  type: types,
  url: z.string().nullable(),
  format: formats,
  events: selections,
  calls: callSelections,
  has_token: z.boolean(),
  ca: z.string().nullable(),
  enabled: z.boolean(),
  lag_seconds: z.number().describe('The age of the oldest event that was not sent yet; 0 if there is none.'),
  last_sent_at: z.string().nullable(),
  failures: z.int().describe('The number of failed attempts since the last success.'),
  last_error: z.string().nullable(),
  dropped_records: z
    .int()
    .describe('Events and records that an OpenTelemetry collector reported as dropped. They are not sent again.'),
  next_attempt_at: z.string().nullable().describe('After a failure: not earlier than this.'),
  created_by: z.string().nullable(),
  created_at: z.string(),
  last_updated_at: z.string(),
});
