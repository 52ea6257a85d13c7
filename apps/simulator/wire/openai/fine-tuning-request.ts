import { z } from 'zod';
import { parseLatency } from '../../faults/latency.ts';
import { readTraits } from '../../read-traits.ts';
import type { FileStore, StoredFile } from '../../tuning/file-store.ts';
import type { JobRequest } from '../../tuning/job-store.ts';
import { checkShape, type Flaw } from '../check-shape.ts';
import type { Received } from '../wire-format.ts';
import { missing, refuse } from './checks.ts';

const auto = z.literal('auto');
const hyperparameters = z.strictObject({
  n_epochs: z.union([auto, z.int().min(1).max(50)]).optional(),
  batch_size: z.union([auto, z.int().min(1).max(256)]).optional(),
  learning_rate_multiplier: z.union([auto, z.number().positive()]).optional(),
});
const settings = <Own extends z.ZodRawShape>(own: Own) =>
  z.looseObject({ hyperparameters: hyperparameters.extend(own).optional() }).optional();
const method = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('supervised'), supervised: settings({}) }),
  z.strictObject({
    type: z.literal('dpo'),
    dpo: settings({ beta: z.union([auto, z.number().positive().max(2)]).optional() }),
  }),
  z.strictObject({ type: z.literal('reinforcement'), reinforcement: z.looseObject({}) }),
]);
const integration = z.looseObject({ type: z.literal('wandb'), wandb: z.looseObject({ project: z.string() }) });
const request = z.strictObject({
  model: z.string().min(1),
  training_file: z.string().min(1),
  validation_file: z.string().nullish(),
  suffix: z.string().min(1).max(64).nullish(),
  seed: z.int().min(0).max(2_147_483_647).nullish(),
  method: method.nullish(),
  hyperparameters: hyperparameters.nullish(),
  integrations: z.array(integration).max(5).nullish(),
  metadata: z.record(z.string().max(64), z.string().max(512)).nullish(),
});

/**
 * Checks the body of POST /v1/fine_tuning/jobs; throws Refusal with OpenAI's wording. The duration of the job comes from the
 * model's name (`+training:2s`), the header x-simulator-training or the simulator's own setting, in this order.
 */
export function readJobRequest({ json, headers }: Received, files: FileStore, defaultMs: number): JobRequest {
  const body = checkShape(request, json, refuseFlaw);
  const header = headers['x-simulator-training'];
  const given = header === undefined ? undefined : parseLatency(String(header));
  if (header !== undefined && given?.type !== 'fixed') {
    refuse('x-simulator-training must be a duration such as 500ms or 2s.', null, 'invalid_value');
  }
  const headerMs = given?.type === 'fixed' ? given.ms : undefined;
  return {
    model: body.model,
    suffix: body.suffix ?? undefined,
    ...readMethod(body),
    training: findFile(files, body.training_file, 'training_file'),
    validation:
      typeof body.validation_file === 'string' ? findFile(files, body.validation_file, 'validation_file') : undefined,
    seed: body.seed ?? undefined,
    integrations: body.integrations,
    metadata: body.metadata,
    totalMs: readTraits(body.model).trainingMs ?? headerMs ?? defaultMs,
  };
}

function readMethod(body: z.output<typeof request>): Pick<JobRequest, 'method' | 'hyperparameters'> {
  const { method: chosen } = body;
  const fallback = body.hyperparameters ?? {};
  switch (chosen?.type) {
    case 'dpo':
      return { method: 'dpo', hyperparameters: chosen.dpo?.hyperparameters ?? fallback };
    case 'reinforcement':
      return { method: 'reinforcement', hyperparameters: fallback };
    case 'supervised':
    case undefined:
      return { method: 'supervised', hyperparameters: chosen?.supervised?.hyperparameters ?? fallback };
  }
}

function findFile(files: FileStore, id: string, param: string): StoredFile {
  const file = files.find(id) ?? refuse(`invalid ${param}: ${id}`, param, null);
  if (file.purpose === 'fine-tune') return file;
  return refuse(`File '${id}' has purpose '${file.purpose}'; expected 'fine-tune'.`, param, null);
}

function refuseFlaw({ kind, path, message }: Flaw): never {
  const param = path.join('.');
  if (kind === 'missing') return missing(param);
  if (kind === 'unknown') return refuse(`Unrecognized request argument supplied: ${param}`, param, 'unknown_parameter');
  return refuse(`Invalid value for '${param}': ${message}.`, param, 'invalid_value');
}
