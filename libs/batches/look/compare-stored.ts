import { createHash, hash } from 'node:crypto';
import type { Kysely } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { isDatabaseTrouble } from '#libs/database/database-error.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { isTerminal } from '../batch/batch.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { resultsRoot } from '../results/results-root.ts';
import {
  inPages,
  listSettled,
  pieceBytesMax,
  readParts,
  readResults,
  type SettledAt,
  type StoredResult,
} from '../results/stored-results.ts';
import type { SettledEvent } from './compare-results.ts';

type Deps = { db: Kysely<Database>; blobs: Pick<BlobStore, 'readRange'> };

/**
 * Yields how the stored results of a batch, from which its files are made, differ from its events: each result must have
 * the digest that it was stored with, and these digests the root of the event that settled them. `batch` is read before
 * `events`; what was settled later is left out. Yields nothing if the results of an ended batch were deleted by retention.
 */
export async function* compareStored(
  deps: Deps,
  batch: Pick<BatchRow, 'id' | 'created_at' | 'version' | 'status'>,
  events: AsyncIterable<SettledEvent>,
): AsyncGenerator<string> {
  const groups = readGroups(deps.db, batch);
  let group = (await groups.next()).value;
  if (group === undefined && isTerminal(batch.status)) return;
  for await (const { version, data } of events) {
    if (version > batch.version) return;
    for (; group !== undefined && group.version < version; group = (await groups.next()).value)
      yield `the stored results of event ${group.version} belong to no event`;
    if (group?.version !== version) {
      yield `event ${version}: its results are not stored`;
      continue;
    }
    for (const page of inPages(group.results)) yield* compareBytes(deps, batch, page);
    const root = resultsRoot(group.results.toSorted((a, b) => a.line - b.line));
    if (root !== data.results_root) yield `event ${version}: results_root does not match the stored results`;
    group = (await groups.next()).value;
  }
  if (group !== undefined && group.version <= batch.version)
    yield `the stored results of event ${group.version} belong to no event`;
}

type Group = { version: number; results: StoredResult[] };

/** The stored results of each event, in the order of the events. */
async function* readGroups(
  db: Kysely<Database>,
  batch: Pick<BatchRow, 'id' | 'created_at'>,
): AsyncGenerator<Group, undefined> {
  let group: Group | undefined;
  for (let at: SettledAt = { version: 0, line: 0 }; ;) {
    const results = await listSettled(db, batch, at);
    for (const result of results) {
      if (group !== undefined && group.version !== result.version) {
        yield group;
        group = undefined;
      }
      group ??= { version: result.version, results: [] };
      group.results.push(result);
    }
    const last = results.at(-1);
    if (last === undefined) break;
    at = { version: last.version, line: last.line };
  }
  if (group !== undefined) yield group;
  return undefined;
}

async function* compareBytes(
  deps: Deps,
  batch: Pick<BatchRow, 'id' | 'created_at'>,
  page: readonly StoredResult[],
): AsyncGenerator<string> {
  try {
    const digests = await hashResults(deps, batch, page);
    for (const { line, sha256 } of page)
      if (digests.get(line)?.equals(sha256) !== true) yield `line ${line}: its stored result was changed`;
  } catch (error) {
    if (!isLost(error)) throw error;
    if (page.length > 1) for (const result of page) yield* compareBytes(deps, batch, [result]);
    else yield `line ${page[0]?.line}: its stored result was lost`;
  }
}

/** A segment that does not exist, or bytes that end too early. */
const isLost = (error: unknown): boolean =>
  error instanceof GatewayError ? error.code === 'blob_not_found' : !isDatabaseTrouble(error);

/** `page` is one large result, or some that can be read together. */
async function hashResults(
  deps: Deps,
  batch: Pick<BatchRow, 'id' | 'created_at'>,
  page: readonly StoredResult[],
): Promise<Map<number, Buffer>> {
  const [first] = page;
  if (first === undefined || first.bytes <= pieceBytesMax) {
    const read = await readResults(deps, batch, page);
    return new Map(Array.from(read, ([line, data]) => [line, hash('sha256', data, 'buffer')]));
  }
  const digest = createHash('sha256');
  for await (const part of readParts(deps, batch, first)) digest.update(part);
  return new Map([[first.line, digest.digest()]]);
}
