import { sql, type Insertable, type Kysely, type Selectable, type Transaction } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { BatchResultTable, Database, LineFailures } from '#libs/database/schema.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import type { LineFailure } from './result-line.ts';
import { resultsBucket } from './results-bucket.ts';
import type { Window } from './scan-requests.ts';

// Results are stored in the groups in which they were settled: one row with an element for each line, and the bytes of
// all lines together. Large groups have their bytes in a segment, which is a blob with the groups of one flush.

/** A range of lines is found by the stripes that it touches, because a row has lines of one stripe only. */
const stripeLines = 4_096;
const stripeOf = (line: number): number => Math.floor((line - 1) / stripeLines);

/** Consecutive results that can be read together are read in pieces of at most this many bytes. */
export const pieceBytesMax = 2 * 1_048_576;
/** Reads of a blob store that run at the same time. */
const readsAtOnce = 8;

type Batch = Pick<BatchRow, 'id' | 'created_at'>;
type Blobs = Pick<BlobStore, 'readRange'>;
type Deps = { db: Kysely<Database>; blobs: Blobs };

/** A result that is about to be stored. `status`: the HTTP status of the answer, 0 without one. */
export type NewResult = {
  line: number;
  status: number;
  failure: LineFailure | null;
  data: Buffer;
  sha256: Buffer;
  /** Where it begins in the segment of its group. */
  offset: number;
};

/**
 * The rows of results of a batch, sorted by line. `segment`: the blob that has their bytes; null stores the bytes in the
 * rows. `version`: that of the event that settles them.
 */
export function toRows(
  batch: Batch,
  results: readonly NewResult[],
  { segment, version }: { segment: string | null; version: number },
): Insertable<BatchResultTable>[] {
  const common = { bucket: resultsBucket(batch), batch_id: batch.id, version };
  return inRows(results).map((group) => ({ ...common, ...toRow(group, segment) }));
}

/** The parameters of a statement are limited. */
const rowsPerStatement = 500;

/** Inserts rows. The caller makes sure that none of their lines has a result. */
export async function insertRows(
  tx: Transaction<Database> | Kysely<Database>,
  rows: readonly Insertable<BatchResultTable>[],
): Promise<void> {
  for (let from = 0; from < rows.length; from += rowsPerStatement)
    await tx
      .insertInto('batch_result')
      .values(rows.slice(from, from + rowsPerStatement))
      .execute();
}

/** A row has lines of one stripe whose bytes follow each other. */
function inRows(results: readonly NewResult[]): NewResult[][] {
  const rows: NewResult[][] = [];
  let last: NewResult | undefined;
  for (const result of results) {
    const isNext = last && last.offset + last.data.length === result.offset;
    if (isNext && stripeOf(last?.line ?? 0) === stripeOf(result.line)) rows.at(-1)?.push(result);
    else rows.push([result]);
    last = result;
  }
  return rows;
}

function toRow(results: readonly NewResult[], segment: string | null) {
  const [first, last] = [results[0] as NewResult, results.at(-1) as NewResult];
  const failures = groupFailures(results);
  return {
    stripe: stripeOf(first.line),
    first_line: first.line,
    last_line: last.line,
    lines: results.map(({ line }) => line),
    lengths: results.map(({ data }) => data.length),
    statuses: results.map(({ status }) => status),
    digests: Buffer.concat(results.map(({ sha256 }) => sha256)),
    failures: failures.length === 0 ? null : JSON.stringify(failures),
    data: segment === null ? Buffer.concat(results.map(({ data }) => data)) : null,
    segment,
    segment_offset: segment === null ? null : first.offset,
  };
}

function groupFailures(results: readonly NewResult[]): LineFailures[] {
  const groups = new Map<string, LineFailures>();
  for (const { line, status: answered, failure } of results) {
    if (failure === null) continue;
    const status = answered === 0 ? null : answered;
    const key = JSON.stringify([failure.code, status]);
    const group = groups.get(key);
    if (group) group.lines.push(line);
    else groups.set(key, { ...failure, status, lines: [line] });
  }
  return [...groups.values()];
}

/** A result that is stored. */
export type StoredResult = {
  line: number;
  /** The HTTP status of the answer, 0 without one. */
  status: number;
  /** The error code of a line that failed; null if it has none or did not fail. */
  code: string | null;
  bytes: number;
  sha256: Buffer;
  /** The segment, or the row if its bytes are there. */
  place: { segment: string } | { stripe: number; firstLine: number };
  /** Where it begins in the segment, or in the bytes of the row. */
  offset: number;
};

const listed = [
  'stripe',
  'first_line',
  'version',
  'lines',
  'lengths',
  'statuses',
  'digests',
  'failures',
  'segment',
  'segment_offset',
] as const;
type ListedRow = Pick<Selectable<BatchResultTable>, (typeof listed)[number]>;

/** The results of a row, by line. */
function resultsOfRow(row: ListedRow): StoredResult[] {
  const codes = new Map(row.failures?.flatMap(({ code, lines }) => lines.map((line) => [line, code] as const)));
  const place = row.segment === null ? { stripe: row.stripe, firstLine: row.first_line } : { segment: row.segment };
  let end = row.segment_offset ?? 0;
  return row.lines.map((line, index) => {
    const bytes = row.lengths[index] as number;
    const sha256 = row.digests.subarray(index * 32, index * 32 + 32);
    const status = row.statuses[index] as number;
    end += bytes;
    return { line, status, code: codes.get(line) ?? null, bytes, sha256, place, offset: end - bytes };
  });
}

/** The stored results of a window of lines, by line, without their bytes. */
export async function listResults(db: Kysely<Database>, batch: Batch, { first, end }: Window): Promise<StoredResult[]> {
  const rows = await db
    .selectFrom('batch_result')
    .select(listed)
    .where('bucket', '=', resultsBucket(batch))
    .where('batch_id', '=', batch.id)
    .where('stripe', '>=', stripeOf(first))
    .where('stripe', '<=', stripeOf(end - 1))
    .where('first_line', '<', end)
    .where('last_line', '>=', first)
    .execute();
  const results = rows.flatMap(resultsOfRow).filter(({ line }) => line >= first && line < end);
  return results.toSorted((a, b) => a.line - b.line);
}

/** A position in the order in which lines were settled. */
export type SettledAt = { version: number; line: number };

const settledRows = 64;

/** The next results after a position, in the order in which they were settled, without their bytes. */
export async function listSettled(
  db: Kysely<Database>,
  batch: Batch,
  { version, line }: SettledAt,
): Promise<(StoredResult & SettledAt)[]> {
  const rows = await db
    .selectFrom('batch_result')
    .select(listed)
    .where('bucket', '=', resultsBucket(batch))
    .where('batch_id', '=', batch.id)
    .where('version', '>=', version)
    .where((of) => of.or([of('version', '>', version), of('last_line', '>', line)]))
    .orderBy('version')
    .orderBy('first_line')
    .limit(settledRows)
    .execute();
  return rows.flatMap((row) =>
    resultsOfRow(row)
      .filter((result) => row.version > version || result.line > line)
      .map((result) => ({ ...result, version: row.version })),
  );
}

/** The results of the lines that an event settled, by line, without their bytes. `version`: that of the event. */
export async function listSettledBy(db: Kysely<Database>, batch: Batch, version: number): Promise<StoredResult[]> {
  const results: StoredResult[] = [];
  for (let after: SettledAt = { version, line: 0 }; ;) {
    const page = await listSettled(db, batch, after);
    results.push(...page.filter((result) => result.version === version));
    const last = page.at(-1);
    if (last === undefined || last.version > version) return results;
    after = last;
  }
}

/** The version of the event that settled a line; null if no row has its result. */
export async function findSettledVersion(db: Kysely<Database>, batch: Batch, line: number): Promise<number | null> {
  const row = await db
    .selectFrom('batch_result')
    .select('version')
    .where('bucket', '=', resultsBucket(batch))
    .where('batch_id', '=', batch.id)
    .where('stripe', '=', stripeOf(line))
    .where('first_line', '<=', line)
    .where('last_line', '>=', line)
    .where(sql<boolean>`${line} = any(lines)`)
    .executeTakeFirst();
  return row?.version ?? null;
}

/** Divides results into pages of at most `countMax` whose bytes fit `pieceBytesMax`; a larger result is a page. */
export function* inPages<Result extends StoredResult>(
  results: readonly Result[],
  countMax = Number.POSITIVE_INFINITY,
): Generator<Result[]> {
  let page: Result[] = [];
  let bytes = 0;
  for (const result of results) {
    if (page.length >= countMax || (page.length > 0 && bytes + result.bytes > pieceBytesMax)) {
      yield page;
      page = [];
      bytes = 0;
    }
    page.push(result);
    bytes += result.bytes;
  }
  if (page.length > 0) yield page;
}

/**
 * Reads results whole and by line; `results` are sorted. Results whose bytes follow each other are read together. The
 * caller bounds their sum. Throws not_found (`blob_not_found`) for a segment that was lost.
 */
export async function readResults(
  deps: Deps,
  batch: Batch,
  results: readonly StoredResult[],
): Promise<Map<number, Buffer>> {
  const found = new Map<number, Buffer>();
  const pieces = inPieces(results);
  const rows = await readRows(deps.db, batch, results);
  const read = async (piece: StoredResult[]): Promise<void> => {
    const { place, offset: start } = piece[0] as StoredResult;
    const length = piece.reduce((sum, { bytes }) => sum + bytes, 0);
    const bytes =
      'segment' in place
        ? await deps.blobs.readRange(place.segment, start, length)
        : rows.get(place.firstLine)?.subarray(start, start + length);
    if (bytes?.length !== length) throw new Error(`batch ${batch.id} has lost the result of line ${piece[0]?.line}`);
    for (const { line, offset, bytes: size } of piece)
      found.set(line, bytes.subarray(offset - start, offset - start + size));
  };
  for (let from = 0; from < pieces.length; from += readsAtOnce)
    await Promise.all(pieces.slice(from, from + readsAtOnce).map(read));
  return found;
}

/** Reads a large result in parts. */
export async function* readParts(deps: Deps, batch: Batch, result: StoredResult): AsyncGenerator<Buffer> {
  for (let from = 0; from < result.bytes; from += pieceBytesMax)
    yield await readPart(deps, batch, result, { from, length: Math.min(pieceBytesMax, result.bytes - from) });
}

/** A part of one result. */
export async function readPart(
  { db, blobs }: Deps,
  batch: Batch,
  { place, offset }: StoredResult,
  { from, length }: { from: number; length: number },
): Promise<Buffer> {
  if ('segment' in place) return await blobs.readRange(place.segment, offset + from, length);
  const { rows } = await sql<{ part: Buffer }>`
    select substring(data from ${offset + from + 1}::int for ${length}::int) as part from batch_result
    where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id} and stripe = ${place.stripe}
      and first_line = ${place.firstLine}`.execute(db);
  return (rows[0] as { part: Buffer }).part;
}

/** Results whose bytes follow each other, up to the size of a piece. */
function inPieces(results: readonly StoredResult[]): StoredResult[][] {
  const open = new Map<string, { piece: StoredResult[]; end: number; bytes: number }>();
  const pieces: StoredResult[][] = [];
  for (const result of results) {
    const key = 'segment' in result.place ? result.place.segment : String(result.place.firstLine);
    const last = open.get(key);
    if (last && last.end === result.offset && last.bytes + result.bytes <= pieceBytesMax) {
      last.piece.push(result);
      last.end += result.bytes;
      last.bytes += result.bytes;
      continue;
    }
    const piece = [result];
    pieces.push(piece);
    open.set(key, { piece, end: result.offset + result.bytes, bytes: result.bytes });
  }
  return pieces;
}

/** The bytes of rows that have them, by the first line of the row. */
async function readRows(
  db: Kysely<Database>,
  batch: Batch,
  results: readonly StoredResult[],
): Promise<Map<number, Buffer>> {
  const places = results.flatMap(({ place }) => ('segment' in place ? [] : [place]));
  const wanted = [...new Map(places.map((place) => [place.firstLine, place])).values()];
  if (wanted.length === 0) return new Map();
  const { rows } = await sql<{ first_line: number; data: Buffer }>`
    select first_line, data from batch_result
    join unnest(${wanted.map(({ stripe }) => stripe)}::int[], ${wanted.map(({ firstLine }) => firstLine)}::int[])
      as wanted (stripe, first_line) using (stripe, first_line)
    where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id}`.execute(db);
  return new Map(rows.map(({ first_line: firstLine, data }) => [firstLine, data]));
}
