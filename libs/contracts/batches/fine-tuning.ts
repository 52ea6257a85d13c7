import { z } from 'zod';
import { cursor, ListQuery, listOf, queryInteger } from '../lists.ts';
import { addBreach, decimal, integer, isStorable, metadata, text } from '../scalars.ts';

// Fine-tuning jobs, their events and checkpoints, as clients send and see them: TUNE-1, TUNE-2.

const fineTuningStatuses = [
  'validating_files',
  'queued',
  'running',
  'paused',
  'succeeded',
  'failed',
  'cancelled',
] as const;

const orAuto = <Value extends z.ZodType>(value: Value) => z.union([z.literal('auto'), value]).nullish();

const common = {
  batch_size: orAuto(integer({ min: 1, max: 256 })),
  learning_rate_multiplier: orAuto(z.number('decimal').gt(0, 'decimal')),
  n_epochs: orAuto(integer({ min: 1, max: 50 })),
};

const Hyperparameters = z.strictObject(common);
const DpoHyperparameters = z.strictObject({
  ...common,
  beta: orAuto(z.number('decimal').gt(0, 'decimal').max(2, 'decimal')),
});
const ReinforcementHyperparameters = z.strictObject({
  ...common,
  compute_multiplier: orAuto(decimal(0.000_01, 10)),
  eval_interval: orAuto(integer({ min: 1 })),
  eval_samples: orAuto(integer({ min: 1 })),
  reasoning_effort: z.enum(['default', 'low', 'medium', 'high']).nullish(),
});

/** The provider checks graders. Only texts that cannot be stored are refused here. */
const Grader = z.looseObject({ type: text({ min: 1, max: 200 }) }).check((context) => {
  if (isStorableDeep(context.value)) return;
  addBreach(context, {
    path: [],
    code: 'invalid_value',
    text: (name) => `Invalid ${name()}: expected well-formed Unicode text without the character U+0000.`,
  });
});

function isStorableDeep(value: unknown): boolean {
  if (typeof value === 'string') return isStorable(value);
  if (typeof value !== 'object' || value === null) return true;
  return Object.entries(value).every(([key, member]) => isStorable(key) && isStorableDeep(member));
}

const Method = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('supervised'),
    supervised: z.strictObject({ hyperparameters: Hyperparameters.nullish() }).nullish(),
  }),
  z.strictObject({
    type: z.literal('dpo'),
    dpo: z.strictObject({ hyperparameters: DpoHyperparameters.nullish() }).nullish(),
  }),
  z.strictObject({
    type: z.literal('reinforcement'),
    reinforcement: z.strictObject({ grader: Grader, hyperparameters: ReinforcementHyperparameters.nullish() }),
  }),
]);

const Integration = z.strictObject({
  type: z.literal('wandb'),
  wandb: z.strictObject({
    project: text({ min: 1, max: 200 }),
    name: text({ max: 200 }).nullish(),
    entity: text({ max: 200 }).nullish(),
    tags: z
      .array(text({ max: 200 }))
      .max(100)
      .nullish(),
  }),
});

/** Body of POST /fine_tuning/jobs. Unknown members are refused. */
export const CreateFineTuningJobRequest = z.strictObject({
  model: text({ min: 1, max: 200 }),
  training_file: text({ min: 1, max: 200 }),
  validation_file: text({ min: 1, max: 200 }).nullish(),
  suffix: text({ min: 1, max: 64 }).nullish(),
  seed: integer({ min: 0, max: 2_147_483_647 }).nullish(),
  method: Method.nullish(),
  hyperparameters: Hyperparameters.nullish(),
  integrations: z.array(Integration).max(5).nullish(),
  metadata: metadata().nullish(),
});
export type CreateFineTuningJobRequest = z.output<typeof CreateFineTuningJobRequest>;

const FineTuningError = z.object({ code: z.string(), message: z.string(), param: z.string().nullable() });

/** A job as clients see it: every member is always present, and null if it has no value. Times are Unix seconds. */
export const FineTuningJobObject = z.object({
  id: z.string(),
  object: z.literal('fine_tuning.job'),
  created_at: z.int(),
  error: FineTuningError.nullable(),
  estimated_finish: z.int().nullable(),
  fine_tuned_model: z.string().nullable(),
  finished_at: z.int().nullable(),
  hyperparameters: z.looseObject({}),
  integrations: z.array(Integration).nullable(),
  metadata: z.record(z.string(), z.string()).nullable(),
  method: z.looseObject({ type: z.string() }),
  model: z.string(),
  organization_id: z.string(),
  result_files: z.array(z.string()),
  seed: z.int(),
  status: z.enum(fineTuningStatuses),
  trained_tokens: z.int().nullable(),
  training_file: z.string(),
  user_provided_suffix: z.string().nullable(),
  validation_file: z.string().nullable(),
});

const FineTuningEventObject = z.object({
  id: z.string(),
  object: z.literal('fine_tuning.job.event'),
  created_at: z.int(),
  level: z.enum(['info', 'warn', 'error']),
  message: z.string(),
  type: z.enum(['message', 'metrics']),
  data: z.looseObject({}).nullable(),
});

const FineTuningCheckpointObject = z.object({
  id: z.string(),
  object: z.literal('fine_tuning.job.checkpoint'),
  created_at: z.int(),
  fine_tuned_model_checkpoint: z.string(),
  fine_tuning_job_id: z.string(),
  metrics: z.record(z.string(), z.number()),
  step_number: z.int(),
});

/** Without `first_id` and `last_id`, like OpenAI's lists of jobs and events. */
const shortListOf = <Item extends z.ZodType>(item: Item) =>
  z.object({ object: z.literal('list'), data: z.array(item), has_more: z.boolean() });

export const FineTuningJobList = shortListOf(FineTuningJobObject);
export const FineTuningEventList = shortListOf(FineTuningEventObject);
export const FineTuningCheckpointList = listOf(FineTuningCheckpointObject);

/** `?after&limit&metadata[key]=value`, any number of pairs, or `metadata=null` for jobs without metadata. */
export const FineTuningJobListQuery = z
  .looseObject({
    after: cursor(),
    limit: queryInteger({ min: 1, max: 100, fallback: 20 }),
    // The SDKs write null as an empty text.
    metadata: z
      .enum(['null', ''])
      .optional()
      .describe(
        '`null` returns jobs without metadata. To filter by metadata, repeat metadata[key]=value for each pair.',
      ),
  })
  .transform(({ after, limit, metadata: none, ...others }, context) => {
    const pairs: Record<string, string> = {};
    for (const [name, value] of Object.entries(others)) {
      const key = /^metadata\[(.*)\]$/s.exec(name)?.[1];
      if (key === undefined) continue;
      if (key === '__proto__') {
        const text = (param: () => string): string =>
          `Invalid ${param()}: '__proto__' is not allowed as a metadata key. Choose another key.`;
        addBreach(context, { path: [name], code: 'invalid_value', text });
      } else if (typeof value === 'string' && isStorable(key) && isStorable(value)) pairs[key] = value;
      else {
        addBreach(context, {
          path: ['metadata'],
          code: 'invalid_value',
          text: (param) =>
            `Invalid ${param()}: send each key only once, as metadata[key]=value, in well-formed Unicode text.`,
        });
      }
    }
    const filter = none === undefined ? (Object.keys(pairs).length > 0 ? pairs : null) : ('none' as const);
    return { after, limit, metadata: filter };
  });

export const FineTuningEventListQuery = ListQuery;
export const FineTuningCheckpointListQuery = z.object({
  after: cursor(),
  limit: queryInteger({ min: 1, max: 100, fallback: 10 }),
});
