import { hash, randomUUID } from 'node:crypto';
import { mkdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { writeWhole } from '../../standalone/files/write-whole.ts';
import { deliverResults, type ResultOptions } from './batch-results.ts';
import { checkInput, type CheckedInput } from './check-input.ts';
import { ApiError } from '../server/cli-error.ts';
import type { ClientOptions } from '../server/client-command.ts';
import { readClientVariables } from '../server/config.ts';
import { connect } from '../server/connection.ts';
import { batchColumns } from './describe-batch.ts';
import { describeReason } from '../terminal/file-problem.ts';
import type { Client } from '../server/http-client.ts';
import { interruptible } from '../terminal/interruptible.ts';
import { readSession } from '../server/login-commands.ts';
import { note, print, printRows } from '../terminal/output.ts';
import { formatBytes, formatCount } from '../terminal/quantities.ts';
import { barOf, createProgressLine } from '../terminal/progress-line.ts';
import { checkTargets } from './result-targets.ts';
import { upload, type FileObject } from './upload.ts';
import { hasEnded, readBatch, watchBatch, type Batch } from './watch-batch.ts';

export type RunOptions = ClientOptions &
  ResultOptions & {
    target?: string;
    config?: string;
    model?: string;
    window: 'immediate' | '24h';
    metadata?: Record<string, string>;
    onBudget?: 'wait' | 'fail';
    onInvalidLine?: 'fail_batch' | 'fail_line';
    priority?: number;
    validateOutputs?: number;
    maxCost?: string;
    maxErrorRate?: string;
    onBound?: 'pause' | 'cancel';
    again?: boolean;
    detach?: boolean;
  };

/** Stored for each run, so that the same command resumes the same batch. */
type Remembered = { run: string; batch_id: string | null };

/**
 * Checks an input file, uploads it, creates a batch, watches it and delivers its results. Running the same command with the
 * same file and options resumes the previous run's batch at the point where that run stopped. Throws CliError, ApiError,
 * UnreachableError.
 */
export async function runBatch(file: string, options: RunOptions): Promise<void> {
  const client = await connect(options);
  await checkTargets([options.output, options.errors], [file]);
  const input = await readInput(file);
  const { workspace } = await readSession(client);
  const body = toBodyObject(input, options);
  const memory = await openMemory(hash('sha256', JSON.stringify([client.server, workspace.id, input.sha256, body])));
  let { batch_id: batchId, run } = options.again ? { batch_id: null, run: randomUUID() } : memory.remembered;
  if (options.again) await memory.write({ run, batch_id: null });
  const known = batchId === null ? null : await findBatch(client, batchId);
  const batch = await interruptible(
    async (signal) => {
      const created = known ?? (await submit(client, input, { ...body, run }, signal));
      batchId = created.id;
      note(
        `${created.id}: ${known === null ? `submitted, ${formatCount(input.lines, 'line')}` : 'already exists; use --again to create another batch'}`,
      );
      if (known === null) await memory.write({ run, batch_id: created.id });
      return options.detach === true ? created : await watchBatch(client, created.id, signal);
    },
    () =>
      batchId === null
        ? 'The batch was not submitted. To start again, repeat the command; you never pay twice.'
        : `The batch continues. To resume watching: sluice batch watch ${batchId}\nTo also get the results, repeat the command.`,
  );
  if (options.detach === true) {
    printRows([batch], batchColumns, options);
    note(
      hasEnded(batch)
        ? `To get the answers: sluice batch results ${batch.id}`
        : `To follow it: sluice batch watch ${batch.id}`,
    );
    return;
  }
  await deliverResults(client, batch, options);
  // The answers are in a file, so scripts can read the batch from stdout.
  if (options.output !== undefined && options.json === true) print(JSON.stringify(batch));
}

/** Checks an input file locally and shows the progress. Throws CliError if it is invalid. */
export async function readInput(file: string): Promise<CheckedInput> {
  const line = createProgressLine();
  const input = await checkInput(file, (bytes, of) => line.show(`checking  ${barOf(bytes, of)}${formatBytes(of)}`));
  line.clear();
  return input;
}

export type BatchOptions = Pick<
  RunOptions,
  | 'target'
  | 'config'
  | 'model'
  | 'window'
  | 'metadata'
  | 'onBudget'
  | 'onInvalidLine'
  | 'priority'
  | 'validateOutputs'
  | 'maxCost'
  | 'maxErrorRate'
  | 'onBound'
>;

/** The request body for a batch with this input, except for its file. */
export const toBodyObject = (input: CheckedInput, options: BatchOptions) => ({
  endpoint: input.endpoint,
  completion_window: options.window,
  ...(options.metadata ? { metadata: options.metadata } : {}),
  gateway_options: {
    ...(options.target === undefined ? {} : { virtual_key: options.target.replace(/^@/, '') }),
    ...(options.config === undefined ? {} : { config: options.config }),
    ...(options.model === undefined ? {} : { provider_model: options.model }),
    ...(options.onBudget === undefined ? {} : { on_budget_exceeded: options.onBudget }),
    ...(options.onInvalidLine === undefined ? {} : { on_invalid_line: options.onInvalidLine }),
    ...(options.priority === undefined ? {} : { priority: options.priority }),
    ...(options.validateOutputs === undefined ? {} : { validate_outputs: { retries: options.validateOutputs } }),
    ...toBounds(options),
    ...(options.onBound === undefined ? {} : { on_bound: options.onBound }),
  },
});

/** The bounds of a batch in a request. `none` removes a bound. */
export const toBounds = ({ maxCost, maxErrorRate }: Pick<RunOptions, 'maxCost' | 'maxErrorRate'>) => ({
  ...(maxCost === undefined ? {} : { max_cost: maxCost === 'none' ? null : maxCost }),
  ...(maxErrorRate === undefined ? {} : { max_error_rate: maxErrorRate === 'none' ? null : Number(maxErrorRate) }),
});

/** The batch of an earlier run; null if the server no longer has it. */
async function findBatch(client: Client, id: string): Promise<Batch | null> {
  try {
    return await readBatch(client, id);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

/** The idempotency keys of both calls are derived from the run, so repeating a call returns its first answer. */
async function submit(
  client: Client,
  input: CheckedInput,
  { run, ...body }: { run: string } & Record<string, unknown>,
  signal: AbortSignal,
): Promise<Batch> {
  const { name } = path.parse(input.file);
  const idempotent = (what: string): string =>
    `sluice-cli-${what}-${hash('sha256', JSON.stringify([run, input.sha256]))}`;
  const key = idempotent(`upload-${name}`.replaceAll(/[^\w.-]/g, '_').slice(0, 80));
  const uploaded = await uploadInput(client, input, key, signal);
  return await client.json<Batch>('POST', '/v1/batches', {
    json: { ...body, input_file_id: uploaded.id },
    idempotencyKey: idempotent('batch'),
    signal,
    isPatient: true,
  });
}

/** Uploads an input file and shows the progress. Repeating it with the same key does not create a second file. */
export async function uploadInput(
  client: Client,
  { file, sha256 }: CheckedInput,
  idempotencyKey: string,
  signal: AbortSignal,
): Promise<FileObject> {
  const line = createProgressLine();
  const { ext, name } = path.parse(file);
  const uploaded = await upload(client, file, {
    purpose: 'batch',
    // The server also compares the name when an upload is repeated.
    filename: ext === '' ? name : `${name}.jsonl`,
    sha256,
    idempotencyKey,
    onProgress: (bytes, of) => line.show(`uploading ${barOf(bytes, of)}${formatBytes(bytes)} of ${formatBytes(of)}`),
    signal,
  });
  line.clear();
  return uploaded;
}

/** `write` only warns, once, if the folder cannot be written: the batch itself must not fail because of it. */
async function openMemory(
  key: string,
): Promise<{ remembered: Remembered; write: (value: Remembered) => Promise<void> }> {
  const folder = path.join(readClientVariables().stateFolder, 'runs');
  const file = path.join(folder, `${key}.json`);
  const fresh: Remembered = { run: key, batch_id: null };
  let remembered = fresh;
  let hasWarned = false;
  try {
    const { run, batch_id: batchId } = JSON.parse(await readFile(file, 'utf8')) as Partial<Remembered>;
    if (typeof run === 'string') remembered = { run, batch_id: typeof batchId === 'string' ? batchId : null };
  } catch {
    // The file does not exist yet or is damaged. The Idempotency-Keys depend only on the input file, so they still find the
    // first run for a day.
  }
  return {
    remembered,
    write: async (value) => {
      try {
        await mkdir(folder, { recursive: true, mode: 0o700 });
        await writeWhole(file, JSON.stringify(value), 0o600);
      } catch (error) {
        if (!hasWarned)
          note(
            `warning: repeating the command will not find this batch, because ${folder} cannot be written: ${describeReason(error, 'its folder does not exist')}.`,
          );
        hasWarned = true;
      }
    },
  };
}
