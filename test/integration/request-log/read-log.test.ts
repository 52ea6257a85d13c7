import { sql } from 'kysely';
import { beforeAll, describe, expect, test } from 'vitest';
import { recordFeedback } from '#libs/analytics/feedback.ts';
import { LogListQuery } from '#libs/contracts/logs/logs.ts';
import { createTestLogger } from '#libs/http/http-test-kit.ts';
import type { RequestLogEntry } from '#libs/request-log/row/log-entry.ts';
import { toLogId } from '#libs/request-log/row/log-id.ts';
import { findLog, selectLogs, rowStatements, type LogListRow } from '#libs/request-log/read/read-log.ts';
import { createRequestLog } from '#libs/request-log/write/request-log.ts';
import { logEntry } from '#test/log-entry.ts';
import { useTestDatabase } from '#test/postgres.ts';
import { insertBatch } from './insert-batch.ts';

const database = useTestDatabase();
const dayMs = 86_400_000;
const startMs = Date.UTC(2026, 10, 21, 12);

/** Records entries, each with the time at which it is to be recorded. */
async function write(entries: readonly (Partial<RequestLogEntry> & { atMs: number })[]): Promise<void> {
  let nowMs = 0;
  const log = createRequestLog({
    app: 'api',
    db: database.db,
    pool: database.pool,
    logger: createTestLogger().logger,
    clock: { now: () => nowMs },
  });
  for (const { atMs, ...given } of entries) {
    nowMs = atMs;
    log.record(logEntry(given));
  }
  await log.stop?.();
  expect(log.stats()).toMatchObject({ writtenRows: entries.length, lostRows: 0 });
}

const list = (workspaceId: string, query: Record<string, unknown> = {}): Promise<LogListRow[]> =>
  selectLogs(database.db, workspaceId, LogListQuery.parse(query));

async function requestIds(workspaceId: string, query: Record<string, unknown> = {}): Promise<string[]> {
  return (await list(workspaceId, { limit: 100, ...query })).map((row) => row.request_id);
}

async function pageThrough(workspaceId: string, limit: number, between: () => Promise<void>): Promise<string[]> {
  const ids: string[] = [];
  for (let after: string | undefined; ;) {
    const rows = await list(workspaceId, { limit, ...(after === undefined ? {} : { after }) });
    ids.push(...rows.slice(0, limit).map((row) => row.request_id));
    if (rows.length <= limit) return ids;
    after = toLogId(rows[limit - 1]?.id ?? '');
    await between();
  }
}

test('pages are newest first, over days and rows of one millisecond, and end', async () => {
  const entries = Array.from({ length: 25 }, (_, index) => ({
    workspace_id: 'ws_pages',
    request_id: `req_${index}`,
    atMs: startMs + Math.floor(index / 5) * dayMs, // five rows in the same millisecond of each day
  }));
  await write(entries);
  const expected = entries.map((entry) => entry.request_id).toReversed();
  for (const limit of [1, 4, 5, 24, 25, 26]) {
    expect(await pageThrough('ws_pages', limit, async () => {})).toEqual(expected);
  }
});

test('paging while rows arrive shows each row that was there exactly once, and none of the new ones', async () => {
  const entries = Array.from({ length: 60 }, (_, index) => ({
    workspace_id: 'ws_busy',
    request_id: `req_${index}`,
    atMs: startMs + index * 3_600_000,
  }));
  await write(entries);
  let arrived = 0;
  const seen = await pageThrough('ws_busy', 7, async () => {
    arrived += 1;
    await write([{ workspace_id: 'ws_busy', request_id: `new_${arrived}`, atMs: startMs + 10 * dayMs + arrived }]);
  });
  expect(seen).toEqual(entries.map((entry) => entry.request_id).toReversed());
  expect(arrived).toBe(8);
});

test('a cursor that is no id of the log is refused', async () => {
  await expect(list('ws_pages', { after: 'batch_1' })).rejects.toMatchObject({
    kind: 'invalid_request',
    code: 'invalid_value',
    param: 'after',
  });
});

describe('filters', () => {
  const ws = 'ws_filters';
  beforeAll(async () => {
    const rows: Partial<RequestLogEntry>[] = [
      { request_id: 'ok', status: 200 },
      { request_id: 'limited', status: 429, error_code: 'rate_limit_exceeded' },
      { request_id: 'failed', status: 502, error_code: 'provider_failed', provider: 'groq', model: 'llama' },
      { request_id: 'left', status: null, error_code: null, trace_id: 'trace_left' },
      { request_id: 'broke', status: 200, error_code: 'stream_failed', virtual_key: 'other-key', stream: true },
      { request_id: 'line', kind: 'batch', batch_id: 'batch_there', batch_line: 1 },
      { request_id: 'traceless', trace_id: null },
    ];
    await write(rows.map((row, index) => ({ ...row, workspace_id: ws, atMs: startMs + index * 1_000 })));
    await write([
      {
        workspace_id: 'ws_other',
        request_id: 'foreign',
        trace_id: 'trace_left',
        batch_id: 'batch_there',
        atMs: startMs,
      },
    ]);
    await insertBatch(database.db, {
      id: 'batch_there',
      workspaceId: ws,
      createdMs: startMs,
      completedMs: startMs + 10_000,
    });
  });

  test.each([
    [{ status: '429' }, ['limited']],
    [{ status: '200' }, ['traceless', 'line', 'broke', 'ok']],
    [{ status: '2xx' }, ['traceless', 'line', 'broke', 'ok']],
    [{ status: '4xx' }, ['limited']],
    [{ status: '5xx' }, ['failed']],
    [{ status: 'error' }, ['broke', 'left', 'failed', 'limited']],
    [{ kind: 'batch' }, ['line']],
    [{ model: 'llama' }, ['failed']],
    [{ provider: 'groq' }, ['failed']],
    [{ virtual_key: 'other-key' }, ['broke']],
    [{ trace_id: 'trace_left' }, ['left']],
    [{ batch_id: 'batch_there' }, ['line']],
    [{ batch_id: 'batch_absent' }, []],
    [{ provider: 'openai', status: 'error' }, ['broke', 'left', 'limited']],
    [{ created_after: startMs / 1_000 + 5 }, ['traceless', 'line']],
    [{ created_before: startMs / 1_000 + 1 }, ['ok']],
    [{ created_after: startMs / 1_000 + 1, created_before: startMs / 1_000 + 3 }, ['failed', 'limited']],
    [{ created_after: startMs / 1_000 + 86_400 }, []],
    [
      { created_after: 0, created_before: 253_402_300_799 },
      ['traceless', 'line', 'broke', 'left', 'failed', 'limited', 'ok'],
    ],
  ])('%j', async (query, expected) => {
    expect(await requestIds(ws, query)).toEqual(expected);
  });

  test('another workspace sees none of these rows, whatever it asks for', async () => {
    expect(await requestIds('ws_other')).toEqual(['foreign']);
    expect(await requestIds('ws_other', { trace_id: 'trace_left' })).toEqual(['foreign']);
    expect(await requestIds('ws_other', { batch_id: 'batch_there' })).toEqual([]);
    expect(await requestIds('ws_nobody')).toEqual([]);
  });

  test.each(['600', '99', '0xx', 'ok', '2x', ' 200', ''])('the status %j is refused', (status) => {
    expect(LogListQuery.safeParse({ status }).success).toBe(false);
  });
});

describe('the filters of analytics', () => {
  const ws = 'ws_rich';
  const rich: Partial<RequestLogEntry> = {
    request_id: 'rich',
    key_id: 'key_9',
    virtual_key: 'groq-main',
    config: 'routes',
    prompt_slug: 'support',
    span_id: 'span_9',
    trace_id: 'trace_rated',
    cache_status: 'HIT',
    metadata: { team: 'search', tier: 'gold' },
    provider: 'groq',
    model: 'llama-9',
    status: 429,
    input_tokens: 9_000,
    output_tokens: 500,
    cost: '123.456',
  };
  beforeAll(async () => {
    await write([
      { workspace_id: ws, request_id: 'plain', metadata: { team: 'ads' }, atMs: startMs },
      { ...rich, workspace_id: ws, atMs: startMs + 1_000 },
    ]);
    const item = { traceId: 'trace_rated', value: 7, weight: 1, metadata: null };
    await recordFeedback(database.db, ws, [item], { source: 'api', keyId: null });
  });

  test.each([
    { api_key_ids: 'key_8,key_9' },
    { virtual_keys: 'groq-main' },
    { configs: 'routes' },
    { prompt_slug: 'support' },
    { span_id: 'span_9' },
    { trace_id: 'trace_other,trace_rated' },
    { cache_status: 'HIT' },
    { metadata: '{"team":"search","tier":["gold","silver"]}' },
    { ai_org_model: 'groq__llama-9' },
    { ai_org_model: 'groq' },
    { ai_model: 'llama-8,llama-9' },
    { status_code: '429,500' },
    { total_units_min: '9500' },
    { prompt_token_min: '9000', prompt_token_max: '9000' },
    { completion_token_min: '500' },
    { cost_min: '123.456', cost_max: '123.456' },
    { weighted_feedback_min: '7' },
    { time_of_generation_min: new Date(startMs + 1_000).toISOString() },
  ])('%j finds the one call that matches', async (query) => {
    expect(await requestIds(ws, query)).toEqual(['rich']);
  });

  test.each([
    { cost_max: '123.455' },
    { weighted_feedback_max: '6.9', api_key_ids: 'key_9' },
    { metadata: '{"team":"search","tier":"silver"}' },
    { ai_org_model: 'groq__llama', total_units_max: '99999' },
    { time_of_generation_max: new Date(startMs).toISOString(), api_key_ids: 'key_9' },
  ])('%j does not find it', async (query) => {
    expect(await requestIds(ws, query)).not.toContain('rich');
  });
});

test('a row is found by its id in its own workspace only', async () => {
  await write([{ workspace_id: 'ws_find', request_id: 'req_find', atMs: startMs }]);
  const [row] = await list('ws_find');
  const id = toLogId(row?.id ?? '');
  expect(await findLog(database.db, 'ws_find', id)).toEqual(row);
  expect(await findLog(database.db, 'ws_other', id)).toBeUndefined();
  expect(await findLog(database.db, 'ws_find', id.slice(0, -1))).toBeUndefined();
  expect(await findLog(database.db, 'ws_find', "log_'; drop table request_log; --")).toBeUndefined();
});

test('a search that takes too long is told to be narrower', async () => {
  await write([{ workspace_id: 'ws_slow', atMs: startMs }]);
  // Takes the place of a search over a hundred million rows.
  await sql`alter table request_log_row rename to request_log_rows`.execute(database.db);
  await sql`create view request_log_row as select * from request_log_rows where pg_sleep(30) is not null`.execute(
    database.db,
  );
  try {
    await expect(
      selectLogs(database.db, 'ws_slow', LogListQuery.parse({ model: 'x' }), { searchTimeoutMs: 50 }),
    ).rejects.toMatchObject({ kind: 'invalid_request', code: 'search_too_broad' });
  } finally {
    await sql`drop view request_log_row`.execute(database.db);
    await sql`alter table request_log_rows rename to request_log_row`.execute(database.db);
  }
});

type Plan = {
  'Node Type': string;
  'Relation Name'?: string;
  'Actual Loops': number;
  'Actual Rows': number;
  'Rows Removed by Filter'?: number;
  Plans?: Plan[];
};

const nodesOf = (plan: Plan): Plan[] => [plan, ...(plan.Plans ?? []).flatMap(nodesOf)];

describe('the cost of a page', () => {
  const ws = 'ws_large';
  beforeAll(async () => {
    // 8 days of 10,000 rows, one in a hundred of this workspace; written past the log for speed.
    const columns = Object.keys(logEntry());
    await write([{ workspace_id: ws, request_id: 'req_model', trace_id: 'trace_rare', atMs: startMs }]);
    const { ensureLogPartition } = await import('#libs/request-log/write/log-partitions.ts');
    const { lowestLogUuid, utcDay } = await import('#libs/request-log/row/log-id.ts');
    for (let day = 0; day < 8; day += 1) {
      const timeMs = startMs + day * dayMs;
      await ensureLogPartition(database.db, utcDay(timeMs));
      const prefix = lowestLogUuid(timeMs).slice(0, 18);
      await sql`
        insert into request_log_row (recorded_on, id, process_id, sequence, ${sql.join(columns.map((column) => sql.ref(column)))})
        select ${utcDay(timeMs)}::date, (${prefix} || '-8000-' || lpad(to_hex(n), 12, '0'))::uuid, process_id, 0,
          ${sql.join(columns.map((column) => (column === 'workspace_id' ? sql`case when n % 100 = 0 then ${ws} else 'ws_rest' end` : column === 'trace_id' ? sql`'trace_' || n` : sql.ref(column))))}
        from generate_series(1, 10000) as n, (select * from request_log where request_id = 'req_model' limit 1) as model
      `.execute(database.db);
    }
    await sql`analyze request_log_row, request_log_pack`.execute(database.db);
  }, 120_000);

  /** The plans of a page's statements, up to the one that fills it. */
  async function explain(query: Record<string, unknown>): Promise<Plan[]> {
    const page = LogListQuery.parse(query);
    const nodes: Plan[] = [];
    let missing = page.limit + 1;
    for (const statement of rowStatements(database.db, ws, page)) {
      if (missing === 0) break;
      const { sql: text, parameters } = statement.limit(missing).compile();
      const { rows } = await database.pool.query(`explain (analyze, format json) ${text}`, [...parameters]);
      const plan = rows[0]['QUERY PLAN'][0].Plan as Plan;
      missing -= plan['Actual Rows'];
      nodes.push(...nodesOf(plan));
    }
    return nodes;
  }

  const executed = (nodes: Plan[]): Plan[] =>
    nodes.filter((node) => node['Relation Name'] !== undefined && node['Actual Loops'] > 0);
  const rowsRead = (nodes: Plan[]): number =>
    executed(nodes).reduce((sum, node) => sum + node['Actual Rows'] + (node['Rows Removed by Filter'] ?? 0), 0);

  test('the plain list reads its own rows, from the newest partition that has them', async () => {
    const nodes = await explain({ limit: 50 });
    expect(nodes.map((node) => node['Node Type'])).not.toContain('Seq Scan');
    expect(nodes.map((node) => node['Node Type'])).not.toContain('Sort');
    expect(rowsRead(nodes)).toBe(51);
    expect(executed(nodes).at(-1)?.['Relation Name']).toBe('request_log_row_20261128');
  });

  test('so does the page after a cursor in the middle of the log, which does not even open the newer partitions', async () => {
    const rows = await list(ws, { limit: 100, created_before: Date.UTC(2026, 10, 25) / 1_000 });
    const nodes = await explain({ limit: 50, after: toLogId(rows[19]?.id ?? '') });
    expect(rowsRead(nodes)).toBe(51);
    expect(executed(nodes).map((node) => node['Relation Name'])).toEqual(['request_log_row_20261124']);
    expect(nodes.map((node) => node['Node Type'])).not.toContain('Sort');
    const relations = nodes.flatMap((node) => node['Relation Name'] ?? []);
    expect(relations).toContain('request_log_row_20261124');
    expect(relations.filter((relation) => relation > 'request_log_row_20261124')).toEqual([]);
  });

  test('a page of one trace reads the rows of that trace', async () => {
    const nodes = await explain({ trace_id: 'trace_100' });
    expect(rowsRead(nodes)).toBeLessThanOrEqual(16);
  });

  test('a page that crosses midnight reads no more than it shows', async () => {
    const rows = await list(ws, { limit: 100, created_before: Date.UTC(2026, 10, 25) / 1_000 });
    const nodes = await explain({ limit: 80, after: toLogId(rows[49]?.id ?? '') });
    expect(rowsRead(nodes)).toBe(81);
    expect(executed(nodes).map((node) => node['Relation Name'])).toEqual([
      'request_log_row_20261124',
      'request_log_row_20261123',
    ]);
    expect(nodes.map((node) => node['Node Type'])).not.toContain('Sort');
  });
});
