import { batchLineId } from '#libs/kernel/ids.ts';
import { sql, type Kysely } from 'kysely';
import type { BatchFailures, BatchLineListQuery, BatchLineObject } from '#libs/contracts/batches/batch-lines.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { memberValue } from '#libs/kernel/json/json-members.ts';
import { isTerminal } from '../batch/batch.ts';
import type { BatchRow } from '../batch/batch-model.ts';
import { failureInBody, isSuccess, unansweredCode, unansweredMessages } from '../results/result-line.ts';
import { resultsBucket } from '../results/results-bucket.ts';
import { scanRequests, type LineDeps, type Window } from '../results/scan-requests.ts';
import {
  inPages,
  listResults,
  pieceBytesMax,
  readPart,
  readResults,
  type StoredResult,
} from '../results/stored-results.ts';

// Shows the lines of a batch, while it runs and after it has ended: results from where they are stored, requests from
// the byte ranges of the input file. Callers must have checked the owner of the batch, because neither has a workspace.

/** The part of a result that `matches` and the answer need. For a large one this is the beginning, which has its status. */
type ReadResult = StoredResult & { head: Buffer };

/** A result is read whole up to this size. For a larger one, only the status is shown. */
const headBytesMax = 65_536;
/** The beginning of a larger result has its status and custom_id. */
const beginningBytes = 8_192;
/** A search reads windows of this many lines and bytes of results, and begins no further one after this time. */
const windowLines = 5_000;
const windowBytesMax = 64 * 1_048_576;
const searchMsMax = 1_500;
const detailsBytesMax = 1_048_576;

export type LinesPage = { lines: BatchLineObject[]; lastLine: number; hasMore: boolean; searchedLines: number };

/**
 * Returns a page of the lines of a batch after the line `after`, by number. A search by the filters ends after little
 * more than 1.5 s, with the lines found until then. Throws conflict (`results_not_kept`) when the result rows were
 * deleted.
 */
export async function readLines(
  deps: LineDeps,
  batch: BatchRow,
  query: Omit<BatchLineListQuery, 'after'> & { after: number },
): Promise<LinesPage> {
  await refuseDroppedResults(deps.db, batch);
  const { limit, after } = query;
  const isPlain = !isLineSearch(query);
  const endMs = performance.now() + searchMsMax;
  const lines: BatchLineObject[] = [];
  let lastLine = after;
  while (lastLine < batch.total && lines.length < limit && (lastLine === after || performance.now() < endMs)) {
    const first = lastLine + 1;
    const end = Math.min(first + (isPlain ? limit : windowLines), batch.total + 1);
    const room = limit - lines.length;
    const { found, end: foundEnd } = await readWindow(deps, batch, query, { first, end, room });
    lines.push(...found.slice(0, room));
    lastLine = found.length > room ? (lines.at(-1)?.line ?? foundEnd - 1) : foundEnd - 1;
  }
  return { lines, lastLine, hasMore: lastLine < batch.total, searchedLines: lastLine - after };
}

type Filters = Omit<BatchLineListQuery, 'after' | 'limit'>;

/** Whether a page may have to skip many lines. */
export const isLineSearch = (query: Filters): boolean =>
  [query.search, query.outcome, query.code, query.status_code, query.model, query.custom_id].some(
    (filter) => filter !== undefined,
  );

/**
 * The matching lines of a window, by number: all of them before `end`. `end` is before the end of the window if lines
 * are large, or if more than `room` match.
 */
async function readWindow(
  deps: LineDeps,
  batch: BatchRow,
  filters: Filters,
  { first, end: windowEnd, room }: Window & { room: number },
): Promise<{ found: BatchLineObject[]; end: number }> {
  const needle = filters.search === undefined ? undefined : Buffer.from(filters.search);
  let end = windowEnd;
  /** The custom IDs of requests: in a search those that contain the text, otherwise those of all requests read. */
  const customIds = new Map<number, string | null>();
  const scan = async (): Promise<void> => {
    end = await scanRequests(deps, batch, { first, end }, ({ line, bytes }) => {
      if (needle === undefined || bytes.includes(needle)) customIds.set(line, customIdOf(bytes));
    });
  };
  // Requests are read only if they are needed: for a search, or for lines without a result, whose custom_id is only in
  // the request.
  if (needle !== undefined) await scan();
  const results = await findResults(deps, batch, filters, { first, end, room }, needle && { needle, customIds });
  end = results.end;
  const found = results.rows.map((row) => toLine(batch, row)).filter((line) => matches(line, filters));
  const open = openLines({ first, end }, results.settled);
  if (open.length > 0 && mayBeOpen(batch, filters)) {
    if (needle === undefined) await scan();
    for (const number of open) {
      if (needle !== undefined && !customIds.has(number)) continue;
      const line = withoutResult(batch, number, customIds.get(number) ?? null);
      if (matches(line, filters)) found.push(line);
    }
  }
  return { found: found.filter(({ line }) => line < end).toSorted((a, b) => a.line - b.line), end };
}

/** Whether lines without a result can match at all. */
function mayBeOpen(batch: BatchRow, { outcome, status_code: status, model }: Filters): boolean {
  if (status !== undefined || model !== undefined) return false;
  return outcome === undefined || outcome === (isOver(batch) ? 'failed' : 'pending');
}

/** The lines of the window that are not among the settled ones. */
function openLines({ first, end }: Window, settled: ReadonlySet<number>): number[] {
  if (settled.size === end - first) return [];
  return Array.from({ length: end - first }, (_value, index) => first + index).filter((line) => !settled.has(line));
}

/** Whether the row of a result already shows that it does not match. */
function isRuledOut({ status, code }: StoredResult, filters: Filters): boolean {
  const { outcome } = filters;
  return (
    (outcome !== undefined && outcome !== (isSuccess(status) ? 'completed' : 'failed')) ||
    (filters.status_code !== undefined && filters.status_code !== status) ||
    (filters.code !== undefined && filters.code !== code)
  );
}

type Search = { needle: Buffer; customIds: ReadonlyMap<number, string | null> };

/**
 * Results of a window until there are more than `room` possible matches, and which of its lines are settled, up to `end`.
 * Bytes of results beyond that are not read.
 */
async function findResults(
  deps: LineDeps,
  batch: BatchRow,
  filters: Filters,
  { first, end, room }: Window & { room: number },
  search: Search | undefined,
): Promise<{ rows: ReadResult[]; settled: ReadonlySet<number>; end: number }> {
  const stored = await listResults(deps.db, batch, { first, end });
  const settled = new Set(stored.map(({ line }) => line));
  const rows: ReadResult[] = [];
  const possible = stored.filter((result) => !isRuledOut(result, filters));
  const needsBytes = [filters.search, filters.model, filters.custom_id].some((filter) => filter !== undefined);
  let bytes = 0;
  for (const page of inPages(possible, needsBytes ? undefined : room + 1)) {
    if (bytes >= windowBytesMax) return { rows, settled, end: (page[0] as StoredResult).line };
    for (const result of await readHeads(deps, batch, page, search)) {
      if (!matches(toLine(batch, result), filters)) continue;
      rows.push(result);
      if (rows.length > room) return { rows, settled, end: result.line + 1 };
    }
    bytes += page.reduce((sum, result) => sum + Math.min(result.bytes, pieceBytesMax), 0);
  }
  return { rows, settled, end };
}

/** Reads the results that have the text of a search in them or in their requests. */
async function readHeads(
  deps: LineDeps,
  batch: BatchRow,
  page: readonly StoredResult[],
  search: Search | undefined,
): Promise<ReadResult[]> {
  const found: ReadResult[] = [];
  const isLarge = ({ bytes }: StoredResult): boolean => bytes > headBytesMax;
  const whole = await readResults(
    deps,
    batch,
    page.filter((result) => !isLarge(result)),
  );
  for (const result of page) {
    const isInRequest = search === undefined || search.customIds.has(result.line);
    // A search looks at this much of a large result.
    const length = Math.min(isInRequest ? beginningBytes : pieceBytesMax, result.bytes);
    const data = whole.get(result.line) ?? (await readPart(deps, batch, result, { from: 0, length }));
    if (isInRequest || data.includes(search.needle)) found.push({ ...result, head: data });
  }
  return found;
}

/** Whether no line gets a result any more. */
const isOver = ({ status }: BatchRow): boolean => isTerminal(status) || status === 'finalizing';

const nothing = { status_code: null, error: null, model: null, usage: null, request_id: null };

function withoutResult(batch: BatchRow, line: number, customId: string | null): BatchLineObject {
  const code = unansweredCode(batch);
  return {
    ...nothing,
    id: String(line),
    object: 'batch.line',
    line,
    custom_id: customId,
    outcome: isOver(batch) ? 'failed' : 'pending',
    result_id: batchLineId(batch.id, line),
    error: isOver(batch) ? { code, message: unansweredMessages[code] } : null,
    result_bytes: null,
  };
}

type Answer = {
  custom_id?: unknown;
  response?: { request_id?: unknown; body?: Body | null } | null;
  error?: { code?: unknown; message?: unknown } | null;
};
type Body = {
  model?: unknown;
  usage?: Record<string, unknown> | null;
  error?: { code?: unknown; type?: unknown; message?: unknown } | string | null;
};

function toLine(batch: BatchRow, { line, status, head, bytes }: ReadResult): BatchLineObject {
  const succeeded = isSuccess(status);
  const base = {
    ...nothing,
    id: String(line),
    object: 'batch.line' as const,
    line,
    outcome: succeeded ? ('completed' as const) : ('failed' as const),
    result_id: batchLineId(batch.id, line),
    result_bytes: bytes,
    status_code: status === 0 ? null : status,
  };
  if (bytes > headBytesMax) return { ...base, ...fromBeginning(head) };
  const answer = parsed(head) as Answer;
  const { response, error } = answer;
  const { body } = response ?? {};
  return {
    ...base,
    custom_id: asText(answer.custom_id),
    request_id: asText(response?.request_id),
    error: succeeded
      ? null
      : error
        ? { code: asText(error.code), message: asText(error.message) }
        : failureInBody(body),
    model: asText(body?.model),
    usage: usageOf(body?.usage),
  };
}

/** Reads a large result: the members that precede the body (result-line.ts). */
function fromBeginning(head: Buffer): Pick<BatchLineObject, 'custom_id' | 'request_id'> {
  const text = head.toString('utf8', 0, beginningBytes);
  const [, customId, requestId] =
    /^\{"id":"[^"]*","custom_id":("(?:[^"\\]|\\.)*"),"response":\{"status_code":\d+,"request_id":("(?:[^"\\]|\\.)*")/.exec(
      text,
    ) ?? [];
  if (customId === undefined) return { custom_id: null, request_id: null };
  return {
    custom_id: asText(JSON.parse(customId)),
    request_id: asText(JSON.parse(requestId ?? 'null')),
  };
}

function usageOf(usage: Body['usage']): BatchLineObject['usage'] {
  if (!usage) return null;
  const input = asNumber(usage['prompt_tokens']) ?? asNumber(usage['input_tokens']);
  const output = asNumber(usage['completion_tokens']) ?? asNumber(usage['output_tokens']);
  return input === null && output === null ? null : { input_tokens: input ?? 0, output_tokens: output ?? 0 };
}

const customIdOf = (request: Buffer): string | null => asText(parsed(memberValue(request, 'custom_id')));
const asText = (value: unknown): string | null => (typeof value === 'string' ? value : null);
const asNumber = (value: unknown): number | null => (Number.isSafeInteger(value) ? (value as number) : null);

/**
 * The value of JSON; an empty object if it is not valid JSON, because a provider's answer is passed on unchanged in any
 * case.
 */
function parsed(json: Buffer | undefined): unknown {
  try {
    return json === undefined ? null : (JSON.parse(json.toString()) as unknown);
  } catch {
    return {};
  }
}

function matches(line: BatchLineObject, filters: Filters): boolean {
  const { outcome, code, status_code: status, model, custom_id: id } = filters;
  return (
    (outcome === undefined || line.outcome === outcome) &&
    (code === undefined || line.error?.code === code) &&
    (status === undefined || line.status_code === status) &&
    (model === undefined || line.model === model) &&
    (id === undefined || line.custom_id === id)
  );
}

/** Result rows are deleted some days after a batch (libs/batches/results/delete-old-results.ts). Its files keep the results. */
export async function refuseDroppedResults(db: Kysely<Database>, batch: BatchRow): Promise<void> {
  if (batch.completed + batch.failed === 0) return;
  const { rows } = await sql`
    select from batch_result where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id} limit 1`.execute(
    db,
  );
  if (rows.length > 0) return;
  const message =
    'The individual results of this batch were deleted after their retention period (SLUICE_RESULTS_RETENTION, or results_retention_days of the workspace). Download its output_file_id and error_file_id, which contain all lines.';
  throw new GatewayError('conflict', 'results_not_kept', message, { param: 'batch_id' });
}

/**
 * Returns one line with its request and its result. Throws not_found for a number that the batch does not have, and
 * like `readLines`.
 */
export async function readLine(
  deps: LineDeps,
  batch: BatchRow,
  line: number,
): Promise<BatchLineObject & { request: unknown; result: unknown }> {
  if (!Number.isSafeInteger(line) || line < 1 || line > batch.total) {
    const message = `The batch has no line ${String(line).slice(0, 20)}. Its lines are numbered from 1 to ${batch.total}.`;
    throw new GatewayError('not_found', null, message, { param: 'line' });
  }
  await refuseDroppedResults(deps.db, batch);
  const window = { first: line, end: line + 1 };
  let request = undefined as Buffer | undefined;
  await scanRequests(deps, batch, window, ({ bytes }) => (request = bytes));
  const [stored] = await listResults(deps.db, batch, window);
  const isShown = (bytes: number): boolean => bytes <= detailsBytesMax;
  const read = { from: 0, length: Math.min(stored?.bytes ?? 0, detailsBytesMax) };
  const head = stored && (await readPart(deps, batch, stored, read));
  return {
    ...(stored && head
      ? toLine(batch, { ...stored, head })
      : withoutResult(batch, line, request === undefined ? null : customIdOf(request))),
    request: request && isShown(request.length) ? parsed(request) : null,
    result: stored && isShown(stored.bytes) ? parsed(head) : null,
  };
}

/** Rows of results with failed lines that are examined at the most. */
const examinedMax = 100_000;
const groupsMax = 50;
const sampleLines = 5;

/** Failed lines by error code and status. Throws like `readLines`. */
export async function readFailures(db: Kysely<Database>, batch: BatchRow): Promise<BatchFailures> {
  await refuseDroppedResults(db, batch);
  type Group = {
    code: string | null;
    status: number | null;
    message: string | null;
    count: number;
    lines: number[];
    all: number;
  };
  const { rows } = await sql<Group>`
    with failed as (
      select first_line, each.* from (
        select first_line, failures from batch_result
        where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id} and failures is not null
        order by stripe, first_line limit ${examinedMax}
      ) as row, jsonb_to_recordset(failures) as each (code text, status int, message text, lines int[])
    )
    select code, status, sum(cardinality(lines))::int as count, (sum(sum(cardinality(lines))) over ())::int as "all",
      (array_agg(message order by first_line))[1] as message,
      array(select unnest(lines[1:${sql.lit(sampleLines)}]) from (
        select lines from failed as one
        where one.code is not distinct from failed.code and one.status is not distinct from failed.status
        order by first_line limit ${sampleLines}
      ) as sample order by 1 limit ${sampleLines}) as lines
    from failed group by code, status order by count desc, min(first_line), code, status limit ${groupsMax}`.execute(
    db,
  );
  const groups = rows.map(({ code, status, message, count, lines }) => ({
    code,
    status_code: status,
    count,
    lines,
    message,
  }));
  const unanswered = isOver(batch) ? batch.total - batch.completed - batch.failed : 0;
  const code = unansweredCode(batch);
  const examined = rows[0]?.all ?? 0;
  return {
    object: 'batch.failures',
    batch_id: batch.id,
    failed_lines: batch.failed + unanswered,
    examined_lines: examined + unanswered,
    groups: [
      ...groups,
      ...(unanswered === 0
        ? []
        : [{ code, status_code: null, count: unanswered, lines: [], message: unansweredMessages[code] }]),
    ].toSorted((a, b) => b.count - a.count),
    other_lines: examined - groups.reduce((sum, { count }) => sum + count, 0),
  };
}
