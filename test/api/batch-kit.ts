import { eventually } from '#test/eventually.ts';
import type { Client, Sdk } from './sdk.ts';

export type Batch = Awaited<ReturnType<Client['batches']['retrieve']>>;
export type BatchCreateParams = Parameters<Client['batches']['create']>[0];

const terminal: ReadonlySet<string> = new Set(['completed', 'failed', 'expired', 'cancelled']);

/** One line of an input file for chat completions; `body` overrides members of the request. */
export function chatLine(customId: string, body: Record<string, unknown> = {}): Record<string, unknown> {
  return {
    custom_id: customId,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model: '@simulator/sim-small', messages: [{ role: 'user', content: `Say ${customId}.` }], ...body },
  };
}

/** `count` lines with ids `line-1`, `line-2`, …. */
export const chatLines = (count: number, body: Record<string, unknown> = {}): Record<string, unknown>[] =>
  Array.from({ length: count }, (_value, index) => chatLine(`line-${index + 1}`, body));

export const toJsonl = (lines: readonly unknown[]): string => lines.map((line) => `${JSON.stringify(line)}\n`).join('');

/** Uploads the text of an input file; returns its id. */
export async function uploadInput({ toFile }: Sdk, client: Client, text: string | Buffer): Promise<string> {
  const file = await toFile(Buffer.from(text), 'input.jsonl');
  return (await client.files.create({ file, purpose: 'batch' })).id;
}

/** Uploads the input and creates the batch. */
export async function createBatch(
  sdk: Sdk,
  client: Client,
  input: string | Buffer | readonly unknown[],
  params: Partial<BatchCreateParams> = {},
): Promise<Batch> {
  const text = typeof input === 'string' || Buffer.isBuffer(input) ? input : toJsonl(input);
  return await client.batches.create({
    input_file_id: await uploadInput(sdk, client, text),
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    ...params,
  });
}

/** Waits until a batch has ended, in whichever way. */
export function ended(client: Client, { id }: { id: string }, timeoutMs = 30_000): Promise<Batch> {
  return eventually(
    () => client.batches.retrieve(id),
    ({ status }) => terminal.has(status),
    { timeoutMs },
  );
}

/** Creates a batch and waits for its end. */
export async function runBatch(...input: Parameters<typeof createBatch>): Promise<Batch> {
  return await ended(input[1], await createBatch(...input));
}

export type ResultLine = {
  id: string;
  custom_id: string;
  response: { status_code: number; request_id: string; body: Record<string, unknown> } | null;
  error: { code: string; message: string } | null;
};

/** The lines of a file of results; none for null. */
async function resultLines(client: Client, fileId: string | null | undefined): Promise<ResultLine[]> {
  if (fileId === null || fileId === undefined) return [];
  const text = await (await client.files.content(fileId)).text();
  if (!text.endsWith('\n')) throw new Error('a file of results must end with a line end');
  return text
    .slice(0, -1)
    .split('\n')
    .map((line) => JSON.parse(line) as ResultLine);
}

/** Both files of a batch. */
export async function resultsOf(
  client: Client,
  batch: Batch,
): Promise<{ output: ResultLine[]; errors: ResultLine[]; customIds: string[] }> {
  const output = await resultLines(client, batch.output_file_id);
  const errors = await resultLines(client, batch.error_file_id);
  return { output, errors, customIds: [...output, ...errors].map((line) => line.custom_id) };
}
