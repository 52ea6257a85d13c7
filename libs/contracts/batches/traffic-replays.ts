import { z } from 'zod';
import { inBody } from '../logs/log-exports.ts';
import { LogListQuery } from '../logs/logs.ts';
import { addBreach, integer, text } from '../scalars.ts';
import { BatchDryRun } from './batch-dry-run.ts';
import { batchEndpoints, GatewayOptionsInput } from './batches.ts';

// /v1/replays: recorded calls, or the lines of a batch, called again with another model, config or prompt.

/** The maximum number of calls in one replay. */
const replayedCallsMax = 50_000;
const judgedAnswersMax = 1_000;
export const judgedAnswersDefault = 200;

const {
  after: _after,
  limit: _limit,
  workspace_slug: _slug,
  workspace_id: _workspace,
  organisation_id: _organisation,
  kind: _kind,
  batch_id: _batch,
  ...logFilters
} = LogListQuery.shape;

/** The filters of GET /v1/logs on live calls. */
const ReplayFilters = z.strictObject(inBody(logFilters));

const Judge = z.strictObject({
  model: text({ min: 1, max: 200 }).describe('The model that compares the answers, such as @my-openai/gpt-5.'),
  virtual_key: text({ min: 1, max: 200 }).optional(),
  config: text({ min: 1, max: 200 }).optional().describe('The slug or ID of a stored config.'),
  instructions: text({ min: 1, max: 4_000 }).optional().describe('What makes an answer better.'),
  limit: integer({ min: 1, max: judgedAnswersMax })
    .optional()
    .describe(
      `The maximum number of different answers that are judged, chosen at random. Default: ${judgedAnswersDefault}.`,
    ),
  seed: integer({ min: 0, max: 2_147_483_647 })
    .optional()
    .describe('Decides which answers are judged, and in which order the judge sees them. Default: a random number.'),
});

export const CreateReplayRequest = z
  .strictObject({
    filters: ReplayFilters.optional().describe('Replays the live calls that match, as in GET /v1/logs.'),
    batch_id: text({ min: 1, max: 200 }).optional().describe('Replays the lines of this batch, which must have ended.'),
    endpoint: z
      .enum(batchEndpoints)
      .default('/v1/chat/completions')
      .describe('Calls of other endpoints are left out. A batch is replayed at its own endpoint.'),
    limit: integer({ min: 1, max: replayedCallsMax })
      .default(replayedCallsMax)
      .describe('The maximum number of calls: the newest ones, or the first lines of a batch.'),
    model: text({ min: 1, max: 200 }).optional().describe('Replaces the model of each request.'),
    prompt: text({ min: 1, max: 200 })
      .optional()
      .describe(
        'Replaces `prompt_id` in lines of a batch that name a prompt, such as support@7. Recorded calls have no variables, so they cannot be replayed with another prompt.',
      ),
    gateway_options: GatewayOptionsInput.optional().describe('Target, config and bounds of the batch of this replay.'),
    judge: Judge.optional().describe('A model that says which of two different answers is better.'),
    dry_run: z.boolean().default(false).describe('Only selects the calls and estimates the cost.'),
  })
  .check((context) => {
    const { filters, batch_id: batchId, prompt } = context.value;
    if ((filters === undefined) === (batchId === undefined)) {
      addBreach(context, {
        path: [filters === undefined ? 'filters' : 'batch_id'],
        code: 'invalid_value',
        text: (name) => `Invalid ${name()}: send either ${name('filters')} or ${name('batch_id')}.`,
      });
    }
    if (prompt === undefined || batchId !== undefined) return;
    addBreach(context, {
      path: ['prompt'],
      code: 'invalid_value',
      text: (name) =>
        `Invalid ${name()}: only lines of a batch can be replayed with another prompt. Send ${name('batch_id')}.`,
    });
  });
export type CreateReplayRequest = z.output<typeof CreateReplayRequest>;

/** Why calls are left out of a replay. */
const leftOutReasons = ['no_recorded_body', 'other_endpoint', 'failed', 'no_model', 'no_prompt', 'unreadable'] as const;

const ReplaySelection = z.object({
  calls: z.int().describe('The number of calls that are replayed.'),
  left_out: z
    .object(Object.fromEntries(leftOutReasons.map((reason) => [reason, z.int().optional()])))
    .describe('Matching calls that are not replayed, by reason.'),
  has_more: z.boolean().describe('Whether more calls match, beyond `limit` or 512 MiB of requests.'),
});
export type ReplaySelection = Omit<z.output<typeof ReplaySelection>, 'left_out'> & {
  left_out: Partial<Record<(typeof leftOutReasons)[number], number>>;
};

const milliseconds = () => z.number().nullable();

/** The calls of one side of a replay. */
const ReplaySide = z.object({
  answered: z.int(),
  failed: z.int(),
  with_record: z.int().describe('The number of calls with a record in the request log, from which the following come.'),
  latency_ms: z
    .object({ p50: milliseconds(), p95: milliseconds(), p99: milliseconds() })
    .describe('The time spent at providers, without waits in a batch.'),
  input_tokens: z.int(),
  output_tokens: z.int(),
  cost_usd: z.string().nullable().describe('Null if no call has a known cost.'),
  unpriced: z.int().describe('Calls without a known cost.'),
  valid: z.int().describe('Answers that match the JSON Schema of their request.'),
  invalid: z.int().describe('Answers that do not match it.'),
});
export type ReplaySide = z.output<typeof ReplaySide>;

const ReplayReport = z.object({
  original: ReplaySide,
  replay: ReplaySide,
  equal: z.int(),
  different: z.int(),
  not_compared: z.int().describe('Calls of which an answer is missing, failed or cannot be read.'),
});
export type ReplayReport = z.output<typeof ReplayReport>;

const ReplayVerdicts = z.object({
  judged: z.int(),
  wins: z.int().describe('How often the answer of the replay is better.'),
  ties: z.int(),
  losses: z.int().describe('How often the answer of the original is better.'),
  unclear: z.int().describe('How often the judge failed, or its answer has another form.'),
});
export type ReplayVerdicts = z.output<typeof ReplayVerdicts>;

const differenceKinds = ['replay_failed', 'schema_broken', 'different', 'original_failed'] as const;

const ReplayDifference = z.object({
  line: z.int().describe('The line of the batch of this replay.'),
  custom_id: z.string().describe('The ID of the log record of the original, or the `custom_id` of its line.'),
  kind: z.enum(differenceKinds),
  similarity: z.number().nullable().describe('How many words the answers share: from 0 to 1.'),
  original_line: z.int().nullable().describe('The line of the original in its batch.'),
  verdict: z.enum(['win', 'tie', 'loss']).nullable().describe('The verdict of the judge on the answer of the replay.'),
});
export type ReplayDifference = z.output<typeof ReplayDifference>;

export const replayStatuses = ['running', 'judging', 'completed', 'failed'] as const;

export const ReplayObject = z.object({
  id: z.string(),
  object: z.literal('traffic_replay'),
  workspace_id: z.string(),
  status: z.enum(replayStatuses),
  error: z.string().nullable().describe('Why the replay failed.'),
  filters: z.record(z.string(), z.unknown()).nullable(),
  source_batch_id: z.string().nullable().describe('The batch whose lines are replayed.'),
  endpoint: z.string(),
  model: z.string().nullable(),
  prompt: z.string().nullable(),
  config: z.string().nullable().describe('The slug or ID of the config.'),
  selection: ReplaySelection,
  batch_id: z.string().describe('The batch that makes the calls.'),
  judge: z
    .object({
      model: z.string(),
      limit: z.int(),
      seed: z.int(),
      batch_id: z.string().describe('The batch of the judge, as soon as it exists.'),
    })
    .nullable(),
  report: ReplayReport.nullable().describe('Null until the batch has ended.'),
  verdicts: ReplayVerdicts.nullable().describe('Null without a judge, and until its batch has ended.'),
  differences: z
    .array(ReplayDifference)
    .optional()
    .describe('Up to 100 calls with another outcome or answer, worst first. Lists leave them out.'),
  created_by: z.string().nullable(),
  created_at: z.string(),
  last_updated_at: z.string(),
});

/** The answer to a dry run. */
export const ReplayDryRun = z.object({
  object: z.literal('traffic_replay.dry_run'),
  selection: ReplaySelection,
  batch: BatchDryRun.nullable().describe('What the batch would do. Null if no call can be replayed.'),
});
