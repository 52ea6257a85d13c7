import type { Kysely } from 'kysely';
import { isSuccess } from '#libs/batches/results/result-line.ts';
import type { Database } from '#libs/database/schema.ts';
import { isDatabaseTrouble } from '#libs/database/database-error.ts';
import type { ReadBodies } from '#libs/request-log/bodies/recorded-bodies.ts';
import { findLiveLogs, selectLogs } from '#libs/request-log/read/read-log.ts';
import { classifyCallOutcome } from '#libs/request-log/row/call-outcome.ts';
import { toLogId } from '#libs/request-log/row/log-id.ts';
import type { ResultLine } from './json-lines.ts';
import type { CallFacts, Side } from './replay-report.ts';

/** An original; `line`: its line in its batch. */
export type Original = Omit<Side, 'isValid'> & { line: number | null };

/** The originals of a replay, by the `custom_id` of its lines. Originals that no longer exist are left out. */
export type Originals = { find: (customIds: readonly string[]) => Promise<ReadonlyMap<string, Original>> };

/** Originals that are records of the request log. Bodies that can no longer be read count as missing. */
export const originalCalls = (db: Kysely<Database>, readBodies: ReadBodies, workspaceId: string): Originals => ({
  async find(customIds) {
    const rows = await findLiveLogs(db, workspaceId, customIds);
    const originals = rows.map(async (row): Promise<[string, Original]> => {
      const bodies = row.bodies_blob === null ? null : readBodies(workspaceId, row.bodies_blob);
      const text = (await bodies?.catch(ignoreUnreadable))?.response ?? null;
      const succeeded = classifyCallOutcome(row) === 'succeeded';
      return [toLogId(row.id), { line: null, succeeded, body: text === null ? undefined : parse(text), facts: row }];
    });
    return new Map(await Promise.all(originals));
  },
});

function ignoreUnreadable(error: unknown): null {
  if (isDatabaseTrouble(error)) throw error;
  return null;
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** Originals that are lines of a batch. They are searched in the order of the lines. */
export const originalLines = (
  results: AsyncIterator<ResultLine>,
  facts: ReadonlyMap<number, CallFacts>,
): Originals => ({
  async find(customIds) {
    const found = new Map<string, Original>();
    for (const wanted of customIds) {
      for (let next = await results.next(); next.done !== true; next = await results.next()) {
        const { line, customId, status, body } = next.value;
        if (customId !== wanted) continue;
        found.set(wanted, { line, succeeded: isSuccess(status), body, facts: facts.get(line) ?? null });
        break;
      }
    }
    return found;
  },
});

const pageRows = 1_000;
const pageTimeoutMs = 60_000;
/** Twice the lines of the largest replay. The first lines of a larger original batch can lack their facts. */
const factsMax = 100_000;

/**
 * Returns latency, tokens and cost of the lines of a batch, from the request log. If there are more than `factsMax` lines,
 * only those that were called last are included.
 */
export async function readLineFacts(
  db: Kysely<Database>,
  workspaceId: string,
  batchId: string,
): Promise<ReadonlyMap<number, CallFacts>> {
  const facts = new Map<number, CallFacts>();
  for (let after: string | undefined; ;) {
    const query = { batch_id: batchId, limit: pageRows, after };
    const found = await selectLogs(db, workspaceId, query, { searchTimeoutMs: pageTimeoutMs });
    const rows = found.slice(0, pageRows);
    for (const { batch_line: line, upstream_ms, input_tokens, output_tokens, cost } of rows)
      if (line !== null) facts.set(line, { upstream_ms, input_tokens, output_tokens, cost });
    const last = rows.at(-1);
    if (found.length <= pageRows || last === undefined || facts.size >= factsMax) return facts;
    after = toLogId(last.id);
  }
}
