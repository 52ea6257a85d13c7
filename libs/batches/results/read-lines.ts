import { sql, type Kysely, type RawBuilder } from 'kysely';
import type { BatchFailures, BatchLineListQuery, BatchLineObject } from '#libs/contracts/batches/batch-lines.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { memberValue } from '#libs/kernel/json/json-members.ts';
import { isTerminal } from '../batch.ts';
import type { BatchRow } from '../batch-model.ts';
import { resultId, unansweredMessages } from './result-line.ts';
import { resultsBucket } from './results-bucket.ts';
import { scanRequests, type LineDeps, type Window } from './scan-requests.ts';

// Shows the lines of a batch, while it runs and after it has ended: results from their rows, requests from the byte
// ranges of the input file. Callers must have checked the owner of the batch, because neither has a workspace.

/**
 * The part of a result that `matches` and the answer need. For a large one this is the beginning, which has its status.
 */
type ResultRow = { line: number; succeeded: boolean; head: Buffer; bytes: number };

/** A result is read whole up to this size. For a larger one, only the status is shown. */
const headBytesMax = 65_536;
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
  conditionsOf(query).length > 0 || query.search !== undefined || query.outcome !== undefined;

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
  const results = await readResults(deps.db, batch, filters, { first, end, room }, [...customIds.keys()]);
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

/** The conditions that Postgres can check on the bytes of a result. `matches` then checks the line itself. */
function conditionsOf({ outcome, code, status_code: status, model, custom_id: id }: Filters): RawBuilder<boolean>[] {
  const has = (text: string): RawBuilder<boolean> => sql`position(${Buffer.from(text)}::bytea in data) > 0`;
  return [
    ...(outcome === 'completed' ? [sql<boolean>`succeeded`] : []),
    ...(outcome === 'failed' ? [sql<boolean>`not succeeded`] : []),
    ...(outcome === 'pending' ? [sql<boolean>`false`] : []),
    ...(code === undefined ? [] : [sql<boolean>`not succeeded`, has(JSON.stringify(code))]),
    ...(status === undefined ? [] : [has(`"status_code":${status},`)]),
    ...(model === undefined ? [] : [has(JSON.stringify(model))]),
    ...(id === undefined ? [] : [has(`"custom_id":${JSON.stringify(id)}`)]),
  ];
}

/**
 * Results of a window until there are more than `room` possible matches, and which of its lines are settled, up to `end`.
 * Bytes of results beyond that are neither searched nor sent.
 */
async function readResults(
  db: Kysely<Database>,
  batch: BatchRow,
  filters: Filters,
  { first, end, room }: Window & { room: number },
  inRequest: readonly number[],
): Promise<{ rows: ResultRow[]; settled: ReadonlySet<number>; end: number }> {
  const search =
    filters.search === undefined
      ? []
      : [
          sql<boolean>`(line = any(${inRequest}::int[]) or position(${Buffer.from(filters.search)}::bytea in data) > 0)`,
        ];
  const conditions = [sql<boolean>`true`, ...conditionsOf(filters), ...search];
  // Results are stored out of line. A result that is not searched or sent is not read, and its size is known without
  // reading it.
  const { rows } = await sql<ResultRow & { head: Buffer | null; all: number }>`
    select line, succeeded, bytes, "all", case when is_hit then substring(data from 1 for ${headBytesMax}) end as head
    from (
      select *, count(*) filter (where is_hit) over (order by line) - is_hit::int as hits_before
      from (
        select *, ${sql.join(conditions, sql` and `)} as is_hit
        from (
          select line, succeeded, data, octet_length(data) as bytes, count(*) over () as "all",
            sum(octet_length(data)) over (order by line) - octet_length(data) as bytes_before
          from batch_result
          where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id} and line >= ${first} and line < ${end}
        ) as sized where bytes_before < ${windowBytesMax} offset 0
      ) as searched
    ) as counted
    where hits_before <= ${room} order by line`.execute(db);
  const last = rows.at(-1);
  return {
    rows: rows.filter((row) => row.head !== null),
    settled: new Set(rows.map(({ line }) => line)),
    end: last !== undefined && rows.length < last.all ? last.line + 1 : end,
  };
}

/** Whether no line gets a result any more. */
const isOver = ({ status }: BatchRow): boolean => isTerminal(status) || status === 'finalizing';

const nothing = { status_code: null, error: null, model: null, usage: null, request_id: null };

function withoutResult(batch: BatchRow, line: number, customId: string | null): BatchLineObject {
  const code = batch.finalizing_reason === 'expired' ? 'batch_expired' : 'batch_cancelled';
  return {
    ...nothing,
    id: String(line),
    object: 'batch.line',
    line,
    custom_id: customId,
    outcome: isOver(batch) ? 'failed' : 'pending',
    result_id: resultId(batch.id, line),
    error: isOver(batch) ? { code, message: unansweredMessages[code] } : null,
    result_bytes: null,
  };
}

type Answer = {
  custom_id?: unknown;
  response?: { status_code?: unknown; request_id?: unknown; body?: Body | null } | null;
  error?: { code?: unknown; message?: unknown } | null;
};
type Body = {
  model?: unknown;
  usage?: Record<string, unknown> | null;
  error?: { code?: unknown; type?: unknown; message?: unknown } | string | null;
};

function toLine(batch: BatchRow, { line, succeeded, head, bytes }: ResultRow): BatchLineObject {
  const base = {
    ...nothing,
    id: String(line),
    object: 'batch.line' as const,
    line,
    outcome: succeeded ? ('completed' as const) : ('failed' as const),
    result_id: resultId(batch.id, line),
    result_bytes: bytes,
  };
  if (bytes > headBytesMax) return { ...base, ...fromBeginning(head) };
  const answer = parsed(head) as Answer;
  const { response, error } = answer;
  const { body } = response ?? {};
  return {
    ...base,
    custom_id: asText(answer.custom_id),
    status_code: asNumber(response?.status_code),
    request_id: asText(response?.request_id),
    error: succeeded ? null : getFailureCode(error, body),
    model: asText(body?.model),
    usage: usageOf(body?.usage),
  };
}

/** Reads a large result: the members that precede the body (result-line.ts). */
function fromBeginning(head: Buffer): Pick<BatchLineObject, 'custom_id' | 'status_code' | 'request_id'> {
  const text = head.toString('utf8', 0, 8_192);
  const [, customId, status, requestId] =
    /^\{"id":"[^"]*","custom_id":("(?:[^"\\]|\\.)*"),"response":\{"status_code":(\d+),"request_id":("(?:[^"\\]|\\.)*")/.exec(
      text,
    ) ?? [];
  if (customId === undefined) return { custom_id: null, status_code: null, request_id: null };
  return {
    custom_id: asText(JSON.parse(customId)),
    status_code: Number(status),
    request_id: asText(JSON.parse(requestId ?? 'null')),
  };
}

function getFailureCode(error: Answer['error'], body: Body | null | undefined): BatchLineObject['error'] {
  if (error) return { code: asText(error.code), message: asText(error.message) };
  const said = body?.error;
  if (typeof said === 'string') return { code: null, message: said.slice(0, messageMax) };
  return {
    code: asText(said?.code) ?? asText(said?.type),
    message: asText(said?.message)?.slice(0, messageMax) ?? null,
  };
}

const messageMax = 1_000;

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

/** Result rows are deleted some days after a batch (SLUICE_RESULTS_RETENTION). The results remain in its files. */
async function refuseDroppedResults(db: Kysely<Database>, batch: BatchRow): Promise<void> {
  if (batch.completed + batch.failed === 0) return;
  const { rows } = await sql`
    select from batch_result where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id} limit 1`.execute(
    db,
  );
  if (rows.length > 0) return;
  const message =
    'The individual results of this batch were deleted after their retention period (SLUICE_RESULTS_RETENTION). Download its output_file_id and error_file_id, which contain all lines.';
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
  const { rows } = await sql<ResultRow>`
    select line, succeeded, octet_length(data) as bytes, substring(data from 1 for ${detailsBytesMax}) as head
    from batch_result
    where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id} and line = ${line}`.execute(deps.db);
  const [row] = rows;
  const isShown = (bytes: number): boolean => bytes <= detailsBytesMax;
  return {
    ...(row ? toLine(batch, row) : withoutResult(batch, line, request === undefined ? null : customIdOf(request))),
    request: request && isShown(request.length) ? parsed(request) : null,
    result: row && isShown(row.bytes) ? parsed(row.head) : null,
  };
}

const examinedMax = 100_000;
const groupsMax = 50;

/** Every result with an answer has this (result-line.ts). */
const statusBegins = '"response":{"status_code":';

/** The text value that follows the name of a member; null if its value is not a text. */
const textAt = (rest: RawBuilder<unknown>): RawBuilder<string | null> =>
  sql`case when split_part(${rest}, '"', 1) in (':', ': ', ' :', ' : ') and length(split_part(${rest}, '"', 2)) between 1 and 100
    and strpos(split_part(${rest}, '"', 2), ${'\\'}) = 0 then split_part(${rest}, '"', 2) end`;

/** Failed lines by error code and status. Throws like `readLines`. */
export async function readFailures(db: Kysely<Database>, batch: BatchRow): Promise<BatchFailures> {
  await refuseDroppedResults(db, batch);
  type Group = {
    code: string | null;
    status: string | null;
    count: number;
    lines: number[];
    groups: number;
    all: number;
  };
  // The code of our own error, or otherwise the first code in the body of the answer. It is read as escaped bytes,
  // because a part of a text need not be valid UTF-8, and without regular expressions, which would take most of the
  // time.
  const { rows } = await sql<Group>`
    with failed as (
      select line, encode(substring(data from 1 for 4096), 'escape') as head from batch_result
      where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id} and not succeeded
      order by line limit ${examinedMax}
    ), parts as materialized (
      select line, left(nullif(split_part(head, ${statusBegins}, 2), ''), 3) as status,
        left(split_part(head, '"code"', 2), 110) as code, left(split_part(head, '"code"', 3), 110) as other_code,
        left(split_part(head, '"type"', 2), 110) as type
      from failed
    ), caused as (
      select line, status, coalesce(${textAt(sql`code`)}, ${textAt(sql`other_code`)}, ${textAt(sql`type`)}) as code from parts
    )
    select code, status, count(*)::int as count, (array_agg(line order by line))[1:5] as lines,
      count(*) over ()::int as groups, (sum(count(*)) over ())::int as "all"
    from caused group by code, status order by count(*) desc, min(line) limit ${groupsMax}`.execute(db);
  const samples = await sampleMessages(
    db,
    batch,
    rows.map(({ lines }) => lines[0] ?? 0),
  );
  const groups = rows.map(({ code, status, count, lines }) => ({
    code,
    status_code: status === null ? null : Number(status),
    count,
    lines,
    message: samples.get(lines[0] ?? 0) ?? null,
  }));
  const unanswered = isOver(batch) ? batch.total - batch.completed - batch.failed : 0;
  const code = batch.finalizing_reason === 'expired' ? 'batch_expired' : 'batch_cancelled';
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

async function sampleMessages(
  db: Kysely<Database>,
  batch: BatchRow,
  lines: readonly number[],
): Promise<ReadonlyMap<number, string | null>> {
  const { rows } = await sql<ResultRow>`
    select line, succeeded, octet_length(data) as bytes, substring(data from 1 for ${headBytesMax}) as head
    from batch_result
    where bucket = ${resultsBucket(batch)}::date and batch_id = ${batch.id} and line = any(${lines}::int[])`.execute(
    db,
  );
  return new Map(rows.map((row) => [row.line, toLine(batch, row).error?.message ?? null]));
}
