import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { createRunningRoot, hashLeaf } from '#libs/seal/merkle-tree.ts';
import { fromLogId, getLogUuidTime } from '../row/log-id.ts';
import { listLogDays } from '../write/log-partitions.ts';
import { compareLeaves, splitHashes, type LeafDifference } from './compare-leaves.ts';
import { readSealedRows, sealType, toLeaf, type CallsSealed, type SealedRow } from './sealed-calls.ts';

type Problem = { subject: string; message: string };

export type CallCheck = {
  seals: number;
  /** The records that were sealed and exist, and those that retention has deleted since. */
  records: number;
  deleted: number;
  problems: Problem[];
};

/** Further problems are not listed. */
const problemsMax = 100;

/**
 * Computes the roots of all seals of calls again whose records exist, and names the records that were changed, added or
 * removed since. `since`: seals that end before this day (`YYYY-MM-DD`) are left out.
 */
export async function checkCalls(
  db: Kysely<Database>,
  { since, onProgress }: { since: string | undefined; onProgress: (records: number) => void },
): Promise<CallCheck> {
  const check: CallCheck = { seals: 0, records: 0, deleted: 0, problems: [] };
  const { rows: streams } = await sql<{ id: string; workspaceId: string }>`
    select id, workspace_id as "workspaceId" from resource where kind = 'request_log' order by id`.execute(db);
  const firstDayMs = Date.parse((await listLogDays(db))[0]?.day ?? '9999-12-31');
  for (const { id, workspaceId } of streams) {
    const keptFromMs = Math.max(firstDayMs, await readDeletedUntil(db, workspaceId));
    for await (const { eventId, data } of readSeals(db, id)) {
      const endMs = toTime(data.last_id);
      if (since !== undefined && endMs < Date.parse(since)) continue;
      if (endMs < keptFromMs) check.deleted += data.records;
      else await checkSeal(db, check, { workspaceId, eventId, data, keptFromMs });
      check.seals += 1;
      onProgress(check.records);
    }
  }
  return check;
}

type Seal = { workspaceId: string; eventId: string; data: CallsSealed; keptFromMs: number };

async function checkSeal(
  db: Kysely<Database>,
  check: CallCheck,
  { workspaceId, eventId, data, keptFromMs }: Seal,
): Promise<void> {
  const subject = `${workspaceId}, seal ${eventId}`;
  const report = (message: string): void => {
    if (check.problems.length < problemsMax) check.problems.push({ subject, message });
  };
  const pages = (): AsyncGenerator<SealedRow[]> => readSealedRows(db, workspaceId, data);
  const root = createRunningRoot();
  let found = 0;
  for await (const rows of pages()) {
    for (const row of rows) root.add(hashLeaf(toLeaf(row)));
    found += rows.length;
  }
  check.records += found;
  if (toHex(root.root()) === data.root) return;
  const hashes = await readHashes(db, eventId);
  const known = createRunningRoot();
  for (const hash of splitHashes(hashes)) known.add(hash);
  if (toHex(known.root()) !== data.root) {
    return report(`${found} of ${data.records} records exist and do not have its root, and its hashes were changed`);
  }
  for await (const difference of compareLeaves(hashes, pages())) {
    const isFirst = difference.kind === 'missing' && difference.after === null;
    if (isFirst && toTime(data.first_id) < keptFromMs) check.deleted += difference.count;
    else report(describe(difference));
  }
}

function describe(difference: LeafDifference): string {
  if (difference.kind !== 'missing') return `the record ${difference.id} was ${difference.kind}`;
  const { count, after } = difference;
  const what = count === 1 ? '1 record was' : `${count} records were`;
  return `${what} removed, ${after === null ? 'before all others' : `after ${after}`}`;
}

/** The hashes of the leaves of a seal; empty if they were deleted. */
export async function readHashes(db: Kysely<Database>, eventId: string): Promise<Buffer> {
  const row = await db.selectFrom('call_seal').select('hashes').where('event_id', '=', eventId).executeTakeFirst();
  return row?.hashes ?? Buffer.alloc(0);
}

async function* readSeals(
  db: Kysely<Database>,
  stream: string,
): AsyncGenerator<{ eventId: string; data: CallsSealed }> {
  for await (const { type, eventId, data } of readEvents(db, stream)) {
    if (type === sealType) yield { eventId, data: data as CallsSealed };
  }
}

/** Until when retention has deleted records of a workspace, by its own account, in epoch milliseconds. */
async function readDeletedUntil(db: Kysely<Database>, workspaceId: string): Promise<number> {
  let until = 0;
  for await (const { type, data } of readEvents(db, workspaceId)) {
    const { kind, before } = data as { kind?: unknown; before?: unknown };
    if (type === 'workspace.data_deleted' && kind === 'request_log')
      until = Math.max(until, Date.parse(String(before)));
  }
  return until;
}

async function* readEvents(db: Kysely<Database>, stream: string) {
  for (let version = 0; ;) {
    const events = await readStream(db, stream, version);
    yield* events;
    const last = events.at(-1);
    if (last === undefined) return;
    version = last.streamVersion;
  }
}

const toTime = (id: string): number => getLogUuidTime(fromLogId(id) ?? '');
const toHex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');
