import { Big } from 'big.js';
import { z } from 'zod';
import type { Breach } from '../calls/describe-issue.ts';
import { addBreach, callMetadata, decimal, integer, text } from '../scalars.ts';
import { ListQuery, listOf } from '../lists.ts';

// Batches as clients send and see them: BATCH-1, BATCH-10; spellings of the options: BATCH-15.

export const batchEndpoints = [
  '/v1/chat/completions',
  '/v1/completions',
  '/v1/embeddings',
  '/v1/messages',
  '/v1/responses',
  '/v1/moderations',
  '/v1/images/generations',
] as const;
export type BatchEndpoint = (typeof batchEndpoints)[number];

const batchStatuses = [
  'validating',
  'failed',
  'in_progress',
  'finalizing',
  'completed',
  'expired',
  'cancelling',
  'cancelled',
] as const;

/** When a file will be deleted, counted from its own creation (BATCH-11, FILE-3): one hour to 30 days. */
export const expiresAfter = () =>
  z.strictObject({ anchor: z.literal('created_at'), seconds: integer({ min: 3_600, max: 2_592_000 }) });

// Each option can be written plainly or like the corresponding header, under our name or the original one.
const spellings = (option: string): readonly [string, string, string] => {
  const header = option.replaceAll('_', '-');
  return [option, `x-gateway-${header}`, `x-portkey-${header}`];
};

const spelled = <Value extends z.ZodType>(option: string, value: Value) =>
  Object.fromEntries(spellings(option).map((spelling) => [spelling, value.nullish()]));

/** Options of a batch in addition to OpenAI's parameters: its target, model and metadata for the request log. */
export type GatewayOptions = {
  virtual_key?: string;
  provider_model?: string;
  /** The slug or id of a stored config, or a config itself. */
  config?: string | Record<string, unknown>;
  metadata?: Record<string, unknown>;
  /** The behaviour of lines when a budget is used up: wait until it is reset (default), or fail. */
  on_budget_exceeded?: 'wait' | 'fail';
  /** Whether an invalid request fails the whole batch before it starts (default), or only its own line. */
  on_invalid_line?: 'fail_batch' | 'fail_line';
  /** Batches of a workspace with a higher number come first. Default 0. */
  priority?: number;
  /** Answers are checked against the JSON Schema of their request. Absent: they are not. */
  validate_outputs?: ValidateOutputs;
  /** US dollars that the calls of the batch can cost, as a decimal. */
  max_cost?: string;
  /** The share of failed lines, from 0 to 1, that stops the batch when it is exceeded … */
  max_error_rate?: number;
  /** … once this many lines have a result. Default 100. */
  max_error_rate_after?: number;
  /** What a bound that is reached does to the batch. Default `pause`. */
  on_bound?: 'pause' | 'cancel';
};

/**
 * `retries`: how often a line is called again because its answer did not match. `schema`: the JSON of a schema that
 * replaces those of the requests, as text because the log cannot store every member name.
 */
export type ValidateOutputs = { retries: number; schema?: string };

const optionNames = [
  'virtual_key',
  'provider_model',
  'config',
  'metadata',
  'on_budget_exceeded',
  'on_invalid_line',
  'priority',
  'validate_outputs',
  'max_cost',
  'max_error_rate',
  'max_error_rate_after',
  'on_bound',
] as const;

const validateOutputs = () =>
  z
    .union([
      z.boolean(),
      z.strictObject({ retries: integer({ min: 0, max: 5 }).nullish(), schema: z.looseObject({}).nullish() }),
    ])
    .transform((given, context): ValidateOutputs | null => {
      if (given === false) return null;
      const { retries, schema }: { retries?: number | null | undefined; schema?: object | null | undefined } =
        given === true ? {} : given;
      const options = { retries: retries ?? 2 };
      if (schema == null) return options;
      const text = JSON.stringify(schema);
      if (Buffer.byteLength(text) > schemaBytesMax) {
        addBreach(context, {
          path: ['schema'],
          code: 'invalid_value',
          text: (name) => `Invalid ${name()}: expected at most ${schemaBytesMax} bytes of JSON.`,
        });
      }
      return { ...options, schema: text };
    });

/** The same limit as for the schemas of requests. */
const schemaBytesMax = 65_536;

/** The endpoints whose requests can name a JSON Schema for their answers. */
const endpointsWithSchemas: ReadonlySet<string> = new Set<BatchEndpoint>(['/v1/chat/completions', '/v1/responses']);

/** Whether answers of an endpoint can follow a JSON Schema. */
export const hasSchemas = (endpoint: string): boolean => endpointsWithSchemas.has(endpoint);

/** The message for `validate_outputs` on another endpoint. */
export const withoutSchemas = (param: string, endpoint: string): string =>
  `Invalid ${param}: answers of '${endpoint}' follow no JSON Schema.`;

/** The options that mean nothing without another one. */
const dependentOptions: readonly { option: string; needs: readonly string[] }[] = [
  { option: 'max_error_rate_after', needs: ['max_error_rate'] },
  { option: 'on_bound', needs: ['max_cost', 'max_error_rate'] },
];

const dollarsMax = 1_000_000_000;

/** An amount above 0 in US dollars, as a number or a decimal. */
const dollars = () =>
  z
    .union([z.number(), z.string()])
    .check((context) => {
      const given = context.value;
      const isDecimal = typeof given === 'number' || /^\d{1,10}(?:\.\d{1,12})?$/.test(given);
      if (isDecimal && Number(given) > 0 && Number(given) <= dollarsMax) return;
      addBreach(context, {
        path: [],
        code: 'invalid_value',
        text: (name) =>
          `Invalid ${name()}: expected an amount in US dollars above 0 and up to ${dollarsMax}, such as 20 or "12.50".`,
      });
    })
    .transform((given) => new Big(given).toFixed());

const errorRate = () => decimal(0, 1);

const twice = (path: string[], other: string): Breach => ({
  path,
  code: 'invalid_value',
  text: (name) => `Invalid ${name()}: it is also set by ${name(other)}. Send only one of them.`,
});

const withoutBound = (option: string, needs: readonly string[]): Breach => ({
  path: [option],
  code: 'invalid_value',
  text: (name) => `Invalid ${name()}: it has no effect without ${needs.map((needed) => name(needed)).join(' or ')}.`,
});

export const GatewayOptionsInput = z
  .strictObject({
    ...spelled('virtual_key', text({ min: 1, max: 200 })),
    ...spelled('provider_model', text({ min: 1, max: 200 })),
    ...spelled('config', z.union([text({ min: 1, max: 200 }), z.looseObject({})])),
    ...spelled('metadata', callMetadata()),
    ...spelled('on_budget_exceeded', z.enum(['wait', 'fail'])),
    ...spelled('on_invalid_line', z.enum(['fail_batch', 'fail_line'])),
    ...spelled('priority', integer({ min: -10, max: 10 })),
    ...spelled('validate_outputs', validateOutputs()),
    ...spelled('max_cost', dollars()),
    ...spelled('max_error_rate', errorRate()),
    ...spelled('max_error_rate_after', integer({ min: 1, max: 1_000_000_000 })),
    ...spelled('on_bound', z.enum(['pause', 'cancel'])),
  })
  .transform((input, context): GatewayOptions => {
    const given: Record<string, unknown> = input;
    const options: Record<string, unknown> = {};
    for (const option of optionNames) {
      const [first, second] = spellings(option).filter(
        (spelling) => given[spelling] !== undefined && given[spelling] !== null,
      );
      if (first === undefined) continue;
      if (second !== undefined) addBreach(context, twice([second], first));
      options[option] = given[first];
    }
    for (const { option, needs } of dependentOptions)
      if (options[option] !== undefined && needs.every((needed) => options[needed] === undefined))
        addBreach(context, withoutBound(option, needs));
    return options;
  });

const optionsAliases = ['gateway_options', 'portkey_options', 'provider_options'] as const;

/** Body of POST /batches. Unknown members are refused. The three names of the options become `gateway_options`. */
export const CreateBatchRequest = z
  .strictObject({
    input_file_id: text({ min: 1, max: 200 }),
    endpoint: z.enum(batchEndpoints),
    completion_window: z.enum(['immediate', '24h']),
    metadata: callMetadata().nullish(),
    output_expires_after: expiresAfter().nullish(),
    gateway_options: GatewayOptionsInput.nullish(),
    portkey_options: GatewayOptionsInput.nullish(),
    provider_options: GatewayOptionsInput.nullish(),
  })
  .transform(({ gateway_options, portkey_options, provider_options, ...common }, context) => {
    const given = { gateway_options, portkey_options, provider_options };
    const [first, second] = optionsAliases.filter((alias) => given[alias] !== undefined && given[alias] !== null);
    if (first !== undefined && second !== undefined) addBreach(context, twice([second], first));
    const options = first === undefined ? {} : (given[first] ?? {});
    if (options.validate_outputs !== undefined && !hasSchemas(common.endpoint)) {
      addBreach(context, {
        path: [first ?? '', 'validate_outputs'],
        code: 'invalid_value',
        text: (name) => withoutSchemas(name(), common.endpoint),
      });
    }
    return { ...common, gateway_options: options };
  });
export type CreateBatchRequest = z.output<typeof CreateBatchRequest>;

/** Body of POST /batches/{id}/resume: new bounds. null removes a bound. */
export const ResumeBatchRequest = z.strictObject({
  max_cost: dollars().nullish().describe('The new maximum cost of the whole batch in US dollars. Null removes it.'),
  max_error_rate: errorRate().nullish().describe('The new maximum share of failed lines. Null removes it.'),
});

const boundNames = ['max_cost', 'max_error_rate'] as const;
export type BoundName = (typeof boundNames)[number];

/** When the batch is paused or cancelled before its end. */
const BatchBounds = z.object({
  max_cost: z.string().nullable().describe('US dollars.'),
  max_error_rate: z.number().nullable(),
  max_error_rate_after: z.int().describe('How many lines must have a result before the error rate counts.'),
  on_bound: z.enum(['pause', 'cancel']),
  reached: z.enum(boundNames).nullable().describe('The bound that has paused or cancelled the batch.'),
});
export type BatchBounds = z.output<typeof BatchBounds>;

/** One problem of an input file; `line` is the 1-based line of the file, null for the file as a whole. */
export const BatchError = z.object({
  code: z.string(),
  message: z.string(),
  param: z.string().nullable(),
  line: z.int().nullable(),
});
export type BatchError = z.output<typeof BatchError>;

const time = () => z.int().nullable();

/** A batch as clients see it: every member is always present, and null if it has no value (BATCH-1). */
export const BatchObject = z.object({
  id: z.string(),
  object: z.literal('batch'),
  endpoint: z.string(),
  model: z.string().nullable(),
  errors: z.object({ object: z.literal('list'), data: z.array(BatchError) }).nullable(),
  input_file_id: z.string(),
  completion_window: z.string(),
  status: z.enum(batchStatuses),
  output_file_id: z.string().nullable(),
  error_file_id: z.string().nullable(),
  created_at: z.int(),
  in_progress_at: time(),
  expires_at: time(),
  finalizing_at: time(),
  completed_at: time(),
  failed_at: time(),
  expired_at: time(),
  cancelling_at: time(),
  cancelled_at: time(),
  request_counts: z.object({ total: z.int(), completed: z.int(), failed: z.int() }),
  usage: z
    .object({
      input_tokens: z.int(),
      input_tokens_details: z.object({ cached_tokens: z.int() }),
      output_tokens: z.int(),
      output_tokens_details: z.object({ reasoning_tokens: z.int() }),
      total_tokens: z.int(),
    })
    .nullable(),
  cost_usd: z.string().nullable().describe('US dollars for all lines with a known cost. Null if there are none.'),
  unpriced_lines: z.int().describe('Lines whose cost is unknown because their model has no known price.'),
  validated_outputs: z
    .object({
      checked: z.int(),
      passed_on_first_call: z.int(),
      passed_after_retry: z.int(),
      failed: z.int(),
    })
    .nullable()
    .describe('How many lines had answers that matched their JSON Schema. Null without `validate_outputs`.'),
  paused_at: time().describe('When the batch was paused. Null if it is not paused.'),
  bounds: BatchBounds.nullable().describe('The bounds of the batch. Null if it has none.'),
  retry_of: z.string().nullable().describe('The batch whose lines this batch retries.'),
  /** As given. OpenAI's have texts only. */
  metadata: z.record(z.string(), z.unknown()).nullable(),
});
export type BatchObject = z.output<typeof BatchObject>;

/** Why lines of a batch are not being called. */
export const BatchWait = z.object({
  reason: z.enum([
    'paused',
    'usage_limit_exceeded',
    'rate_limited',
    'circuit_open',
    'provider_busy',
    'retry',
    'gateway',
    'secret_unavailable',
    'snoozed',
    'queued',
  ]),
  message: z
    .string()
    .describe('A sentence that states how many lines are waiting, for which model and credential, and why.'),
  lines: z.int().nullable().describe('The number of waiting lines.'),
  target: z
    .string()
    .nullable()
    .describe(
      'The virtual key, provider or secret reference that they are waiting for. Null if it is unknown or there are several.',
    ),
  model: z.string().nullable(),
  since: time(),
  until: time().describe('When the next of these lines will be called. Null if unknown.'),
});
export type BatchWait = z.output<typeof BatchWait>;

/** The progress of a batch, measured by the gateway. */
export const BatchProgress = z.object({
  eta: z
    .string()
    .nullable()
    .describe(
      'When the last line is expected to have a result, at the present rate, as an RFC 3339 time. Null if unknown: before ' +
        'the first results, and while the batch is paused or all of its lines wait.',
    ),
  lines_per_second: z
    .number()
    .nullable()
    .describe('Results per second in the last minute. Null if the batch is not in progress.'),
  calls_in_flight: z.int().describe('Calls to providers that are running, as of a few seconds ago.'),
  repeated_calls: z
    .int()
    .describe(
      'An upper bound of the lines that were called again because their worker had died, hung or been stopped. Only a ' +
        'worker knows which calls it has started, so if it was killed, all lines without a result that it held count.',
    ),
  repeated_cost_usd: z
    .string()
    .nullable()
    .describe(
      'US dollars for one of the calls of each of these lines, as far as known; `cost_usd` includes one call of each ' +
        'line. Null if there are none.',
    ),
});
export type BatchProgress = z.output<typeof BatchProgress>;

export const BatchDetail = BatchObject.extend({
  gateway: BatchProgress.describe('The progress of the batch.'),
  waits: z
    .array(BatchWait)
    .describe('Why the batch makes slow progress or none, as of a few seconds ago. Empty if nothing holds it up.'),
});

export type BatchDetail = z.output<typeof BatchDetail>;

export const BatchListQuery = ListQuery;
export const BatchList = listOf(BatchObject);
