import { hash } from 'node:crypto';
import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { batchLineId } from '#libs/kernel/ids.ts';
import { memberValue } from '#libs/kernel/json/json-members.ts';
import { createRunningProof, hashLeaf, isIncluded } from '#libs/seal/merkle-tree.ts';
import { isBlank, readAllLines } from '#libs/validation/json-lines.ts';
import type { BatchEvent } from '../batch/batch.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { rangesOfBits } from '../chunks/settled-lines.ts';
import { hashResult, resultsRoot } from '../results/results-root.ts';
import { findSettledVersion, listSettledBy, readPart } from '../results/stored-results.ts';
import { hashLines } from './compare-results.ts';

// Shows how a line of a batch is part of a root in the event log. Memory does not depend on the number of lines.

type Data<Type extends BatchEvent['type']> = Extract<BatchEvent, { type: Type }>['data'];

export type ProofDeps = {
  db: Kysely<Database>;
  blobs: Pick<BlobStore, 'read' | 'readRange'>;
  /** The blob of a file; null if the file was deleted or has expired. */
  findBlob: (workspaceId: string, fileId: string) => Promise<string | null>;
};

/**
 * A line and its path to a root. `line_hash`: of a result, the SHA-256 of its bytes; of a request, the hash of its leaf.
 * `line_base64`: the bytes; null if they are not kept, or too large.
 */
export type LinePath = { line_hash: string; line_path: string[]; line_base64: string | null };

/** A larger line is proved by its digest. */
const shownBytesMax = 16 * 1_048_576;

const shown = (bytes: Buffer): string | null => (bytes.length > shownBytesMax ? null : bytes.toString('base64'));

/** Throws not_found for an unknown batch. */
export async function findBatch(db: Kysely<Database>, id: string): Promise<BatchRow> {
  const batch = await db.selectFrom('batch').selectAll().where('id', '=', id).executeTakeFirst();
  if (batch !== undefined) return batch;
  throw new GatewayError('not_found', 'batch_not_found', `There is no batch '${id}'.`);
}

/** The number of the line with a custom_id; null if no kept file has it. */
export async function findLineNumber(deps: ProofDeps, batch: BatchRow, customId: string): Promise<number | null> {
  let line = 0;
  for await (const bytes of readRequests(deps, batch)) {
    line += 1;
    const value = memberValue(bytes, 'custom_id');
    if (value !== undefined && JSON.parse(value.toString()) === customId) return line;
  }
  return null;
}

/** The requests of the input file, in order; none if the file is not kept. */
async function* readRequests({ blobs, findBlob }: ProofDeps, batch: BatchRow): AsyncGenerator<Buffer> {
  const blob = await findBlob(batch.workspace_id, batch.input_file_id);
  if (blob === null) return;
  for await (const bytes of readAllLines((await blobs.read(blob)) as AsyncIterable<Buffer>))
    if (!isBlank(bytes, 0, bytes.length)) yield bytes;
}

/** The request of a line under `input_root`; null if the input file is not kept, or is another one. */
export async function proveRequest(
  deps: ProofDeps,
  batch: BatchRow,
  line: number,
  { line_count: count, input_root: root }: Data<'batch.validated'>,
): Promise<LinePath | null> {
  if (root === undefined) return null;
  const running = createRunningProof(line - 1, count);
  let [number, wanted] = [0, Buffer.alloc(0)];
  for await (const bytes of readRequests(deps, batch)) {
    number += 1;
    if (number === line) wanted = Buffer.from(bytes);
    running.add(hashLeaf(bytes));
  }
  const [leaf, path] = [hashLeaf(wanted), running.proof()];
  if (number !== count || !isIncluded(leaf, line - 1, path, { size: count, root: Buffer.from(root, 'hex') }))
    return null;
  return { line_hash: leaf.toString('hex'), line_path: toBase64(path), line_base64: shown(wanted) };
}

const toBase64 = (path: readonly Buffer[]): string[] => path.map((each) => each.toString('base64'));

/** SQL for the event that settled a line. */
export async function isSettlementOf(
  db: Kysely<Database>,
  batch: BatchRow,
  line: number,
): Promise<RawBuilder<unknown>> {
  const version = await findSettledVersion(db, batch, line);
  if (version !== null) return sql`stream_id = ${batch.id} and stream_version = ${version}`;
  // Result rows are deleted some days after the batch. Its events have a bit for each line, the highest of a byte first.
  return sql`stream_id = ${batch.id} and type = 'batch.lines_settled' and exists (
    select from json_to_recordset(data -> 'chunks') as bits (first_line int, settled text)
    cross join lateral (select ${line}::int - first_line as index, decode(settled, 'base64') as bytes) as place
    where case when index between 0 and length(bytes) * 8 - 1
      then get_bit(bytes, index / 8 * 8 + 7 - index % 8) = 1 else false end)`;
}

/** The result of a line and where its bytes can be read. */
type Found = { line: number; sha256: Buffer; bytes: number; read: () => Promise<Buffer> };

/** The result of a line under `results_root` of the event that settled it; null if the digests of its lines are not kept. */
export async function proveResult(
  deps: ProofDeps,
  batch: BatchRow,
  line: number,
  { version, data }: { version: number; data: Pick<Data<'batch.lines_settled'>, 'chunks' | 'results_root'> },
): Promise<LinePath | null> {
  const lines = data.chunks
    .flatMap(rangesOfBits)
    .flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_line, index) => first + index))
    .toSorted((a, b) => a - b);
  for (const find of [findInRows, findInFiles]) {
    const results = await find(deps, batch, { version, lines });
    const index = results.findIndex((result) => result.line === line);
    const wanted = results[index];
    if (wanted === undefined || resultsRoot(results) !== data.results_root) continue;
    const running = createRunningProof(index, results.length);
    for (const result of results) running.add(hashResult(result));
    const content = await readWhole(wanted);
    return { line_hash: wanted.sha256.toString('hex'), line_path: toBase64(running.proof()), line_base64: content };
  }
  return null;
}

async function readWhole({ bytes, sha256, read }: Found): Promise<string | null> {
  if (bytes > shownBytesMax) return null;
  try {
    const content = await read();
    return hash('sha256', content, 'buffer').equals(sha256) ? content.toString('base64') : null;
  } catch (error) {
    if (error instanceof GatewayError && error.code === 'blob_not_found') return null;
    throw error;
  }
}

type Settled = { version: number; lines: readonly number[] };

async function findInRows(deps: ProofDeps, batch: BatchRow, { version }: Settled): Promise<Found[]> {
  const stored = await listSettledBy(deps.db, batch, version);
  return stored.map((result) => ({
    ...result,
    read: () => readPart(deps, batch, result, { from: 0, length: result.bytes }),
  }));
}

async function findInFiles({ blobs, findBlob }: ProofDeps, batch: BatchRow, { lines }: Settled): Promise<Found[]> {
  const wanted = new Map(lines.map((line) => [batchLineId(batch.id, line), line]));
  const found: Found[] = [];
  for (const fileId of [batch.output_file_id, batch.error_file_id]) {
    const blob = fileId === null ? null : await findBlob(batch.workspace_id, fileId);
    if (blob === null) continue;
    for await (const { id, offset, bytes, sha256 } of hashLines((await blobs.read(blob)) as AsyncIterable<Buffer>)) {
      const line = wanted.get(id);
      if (line !== undefined) found.push({ line, sha256, bytes, read: () => blobs.readRange(blob, offset, bytes) });
    }
  }
  return found.toSorted((a, b) => a.line - b.line);
}
