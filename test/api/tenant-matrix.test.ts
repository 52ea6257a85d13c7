import { randomBytes } from 'node:crypto';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { tenantRole } from '#libs/database/isolate-workspaces.ts';
import { toAreaTag } from '#apps/api/calls/relay-call.ts';
import { relayAreas } from '#libs/providers/provider.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { createRecordMaker, recordPaths, send as sendTo, type Answer } from './record-makers.ts';

// Every operation of the API, as the document lists them, is called with every key that must not get anywhere: none, a wrong
// one, a revoked one, one without the scope, an expired one, the key of another workspace, and keys of users of lesser roles. A
// new route takes part by itself; one whose path names a record of a new kind needs a line in record-makers.ts.

type Operation = { method: string; path: string; scope: string; isRelayed: boolean };
/** Part of every name in the first workspace: no answer to another one may have it. */
const canary = `only-here-${randomBytes(6).toString('hex')}`;

let platform: TestPlatform;
let document: { paths: Record<string, Record<string, { 'x-scope'?: string; tags: string[] }>> };
let operations: Operation[];
/** Ids of records of the first workspace, by the path up to the parameter. */
let records: ReadonlyMap<string, string>;
const keys = {
  other: '',
  revoked: '',
  expired: '',
  narrow: new Map<string, string>(),
  ofRole: new Map<string, string>(),
};
let cells = 0;

const send = (method: string, path: string, key: string | null, body?: object): Promise<Answer> =>
  sendTo(platform, method, path, key, body);

beforeAll(async () => {
  platform = await startPlatform({ movableClock: true });
  await noteWriters();
  const maker = createRecordMaker(platform, { key: platform.adminKey, workspaceId: 'default', name: canary });
  const { make, makeUser, makeRecordsOf } = maker;
  records = maker.records;
  document = (await (await fetch(new URL('/openapi.json', platform.baseUrl))).json()) as typeof document;
  const areas = new Set(relayAreas.map(toAreaTag));
  operations = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).flatMap(
      ([
        method,
        {
          'x-scope': scope,
          tags: [tag = ''],
        },
      ]) => (scope === undefined ? [] : [{ method: method.toUpperCase(), path, scope, isRelayed: areas.has(tag) }]),
    ),
  );
  for (const { path, isRelayed } of operations) {
    if (!isRelayed) await makeRecordsOf(path);
  }
  const { id } = await make('/v1/admin/workspaces', { name: 'other' });
  keys.other = (await make('/v1/api-keys', { name: 'other', workspace_id: id ?? '' }))['key'] ?? '';
  for (const role of ['member', 'manager']) {
    const user_id = await makeUser([{ id: id ?? '', role }]);
    const key = { name: role, user_id, scopes: null, workspace_id: id };
    keys.ofRole.set(role, (await make('/v1/api-keys/workspace/user', key))['key'] ?? '');
  }
  const revoked = await make('/v1/api-keys', { name: 'revoked' });
  keys.revoked = revoked['key'] ?? '';
  await send('DELETE', `/v1/api-keys/${revoked['id']}`, platform.adminKey);
  const expires_at = new Date(Date.now() + 3_600_000).toISOString();
  keys.expired = (await make('/v1/api-keys', { name: 'expired', expires_at }))['key'] ?? '';
  for (const scope of new Set(operations.map((operation) => operation.scope)).values().take(2)) {
    keys.narrow.set(scope, (await make('/v1/api-keys', { name: scope, scopes: [scope] }))['key'] ?? '');
  }
}, 60_000);
afterAll(() => platform?.stop());

/** Notes of each event as which role it is written. */
async function noteWriters(): Promise<void> {
  const { db } = platform.database;
  await sql`create table writer (type text, actor text, workspace_id text, role text)`.execute(db);
  await sql`grant insert on writer to public`.execute(db);
  await sql`
    create function note_writer() returns trigger language plpgsql as $$
    begin
      insert into writer values (new.type, new.metadata -> 'actor' ->> 'type', new.workspace_id, current_user);
      return null;
    end $$`.execute(db);
  await sql`create trigger note_writer after insert on event for each row execute function note_writer()`.execute(db);
}

/** The path with ids of records of the first workspace; those at a provider have none here. */
function addressed({ path, isRelayed }: Operation): string {
  const places = recordPaths(path);
  return path.replaceAll(/\{\w+\}/g, () => {
    const place = places.shift() ?? '';
    return isRelayed ? 'object-1' : encodeURIComponent(records.get(place) ?? '');
  });
}

/** Analytics are of a time, and a replay of a record. */
function queryOf({ path }: Operation): string {
  if (path === '/v1/events/records') return '?kind=batch';
  if (path === '/v1/events/replay' || path === '/v1/events/diff') return `?stream=${records.get('/v1/batches')}`;
  return path.startsWith('/v1/analytics/')
    ? '?time_of_generation_min=2020-01-01T00:00:00Z&time_of_generation_max=2020-01-02T00:00:00Z'
    : '';
}

/** Calls every operation. Returns those whose answer is not as it should be. */
async function sweep(
  keyFor: (operation: Operation) => string | null,
  isRight: (answer: Answer, operation: Operation) => boolean,
  query = '',
): Promise<string[]> {
  const wrong: string[] = [];
  for (const operation of operations) {
    const { method } = operation;
    const answer = await send(
      method,
      addressed(operation) + query,
      keyFor(operation),
      method === 'GET' ? undefined : {},
    );
    cells += 1;
    // An error may repeat what the path said.
    const sent = recordPaths(operation.path).map((place) => records.get(place) ?? '');
    const hasLeaked = sent.reduce((text, id) => text.replaceAll(id, ''), answer.text).includes(canary);
    if (hasLeaked || !isRight(answer, operation)) {
      wrong.push(
        `${method} ${operation.path}: ${hasLeaked ? 'LEAK ' : ''}${answer.status} ${answer.text.slice(0, 200)}`,
      );
    }
  }
  return wrong;
}

/** What the first workspace has, as its own key sees it: nothing that the others did may show. */
async function readRecords(): Promise<Record<string, unknown>> {
  const read: Record<string, unknown> = {};
  for (const operation of operations) {
    const { method, path: named, isRelayed } = operation;
    const isOther = isRelayed || /^\/v1\/(?:analytics|audit\/tile)\//.test(named);
    const isRecord = method === 'GET' && named.endsWith('}') && !isOther;
    if (!isRecord) continue;
    const path = addressed(operation);
    const { status, text } = await send('GET', path, platform.adminKey);
    expect([path, status]).toEqual([path, 200]);
    // A destination that gets no events is further behind each time.
    read[path] = JSON.parse(text, (name, value: unknown) => (name === 'lag_seconds' ? 0 : value));
  }
  return read;
}

const batchPath = (): string => `/v1/batches/${records.get('/v1/batches')}`;
const jobPath = (): string => `/v1/fine_tuning/jobs/${records.get('/v1/fine_tuning/jobs')}`;
const hasEnded = ({ text }: Answer): boolean => /"status":"(?:completed|succeeded|failed)"/.test(text);

test('without a key, with a wrong one and with a revoked one every operation answers 401', async () => {
  const isRefused = ({ status }: Answer): boolean => status === 401;
  expect(await sweep(() => null, isRefused)).toEqual([]);
  // Few wrong keys at a time are judged; the rest is told to slow down, which is as closed.
  const wrong = await sweep(
    () => 'sk-wrong',
    ({ status }) => status === 401 || status === 429,
  );
  expect(wrong).toEqual([]);
  expect(
    await sweep(
      () => keys.revoked,
      ({ status }) => status === 401 || status === 429,
    ),
  ).toEqual([]);
});

test('a key without the scope of an operation gets 403 from it', async () => {
  const other = ({ scope }: Operation): string => keys.narrow.entries().find(([own]) => own !== scope)?.[1] ?? '';
  expect(await sweep(other, ({ status, code }) => status === 403 && code === 'missing_scope')).toEqual([]);
});

test('the key of another workspace reaches no record of this one, and changes none', { timeout: 60_000 }, async () => {
  await eventually(() => send('GET', batchPath(), platform.adminKey), hasEnded, { timeoutMs: 30_000 });
  await eventually(() => send('GET', jobPath(), platform.adminKey), hasEnded, { timeoutMs: 30_000 });
  const before = await readRecords();
  const isClosed = ({ status }: Answer, { path, isRelayed, scope }: Operation): boolean => {
    if (isRelayed || status >= 400) return status < 500;
    // What belongs to the other workspace itself may be read and changed, and its lists are its own.
    return recordPaths(path).length === 0 && (scope.endsWith('.read') || path === '/v1/admin/guardrails');
  };
  expect(await sweep(() => keys.other, isClosed)).toEqual([]);
  // The lists of the organisation's records have only the caller's own, whatever the query says.
  const ofOrganisation = [
    '/v1/admin/workspaces',
    '/v1/admin/users',
    '/v1/admin/users/invites',
    '/v1/admin/price-tables',
  ];
  const isRefused = ({ status }: Answer, { path }: Operation): boolean =>
    ofOrganisation.includes(path) ? status < 500 : status >= 400 && status < 500;
  expect(await sweep(() => keys.other, isRefused, '?workspace_id=default')).toEqual([]);
  expect(await readRecords()).toEqual(before);
});

/** What a role may not do at all: by the beginning of the scope, or the whole of it. */
const forbidden: Record<string, RegExp> = {
  member:
    /^(?:users\.|api_keys\.|audit\.|(?:workspaces|virtual_keys|integrations|providers|configs|guardrails|policies|logs)\.write$)/,
  manager: /^(?:users\.|workspaces\.write$|audit\.write$)/,
};

test.each(['member', 'manager'])(
  'the key of a %s of another workspace may do what the role may, there, and nothing here',
  { timeout: 60_000 },
  async (role) => {
    const before = await readRecords();
    const isClosed = ({ status, code }: Answer, { path, isRelayed, scope }: Operation): boolean => {
      if (forbidden[role]?.test(scope)) return status === 403 && code === 'missing_scope';
      if (isRelayed || status >= 400) return status < 500;
      return recordPaths(path).length === 0 && scope.endsWith('.read');
    };
    expect(await sweep(() => keys.ofRole.get(role) ?? '', isClosed)).toEqual([]);
    expect(await readRecords()).toEqual(before);
  },
);

test('what is read has the shape that the document gives it', async () => {
  const ajv = new Ajv2020({ strict: false, validateFormats: false }).addSchema(document, 'document');
  const wrong: string[] = [];
  for (const operation of operations) {
    if (operation.method !== 'GET' || operation.isRelayed) continue;
    const { status, text } = await send('GET', addressed(operation) + queryOf(operation), platform.adminKey);
    const place = ['paths', operation.path, 'get', 'responses', '200', 'content', 'application/json', 'schema'];
    const pointer = place.map((part) => part.replaceAll('~', '~0').replaceAll('/', '~1')).map(encodeURIComponent);
    const isRight = ajv.getSchema(`document#/${pointer.join('/')}`);
    // Some answers are bytes.
    if (isRight === undefined) continue;
    if (status !== 200 || !isRight(JSON.parse(text))) {
      wrong.push(`${operation.path}: ${status} ${ajv.errorsText(isRight.errors)} ${text.slice(0, 300)}`);
    }
  }
  expect(wrong).toEqual([]);
});

test('an expired key gets 401 from every operation', async () => {
  await platform.passTime(2 * 3_600_000);
  await eventually(
    () => send('GET', '/v1/configs', keys.expired),
    ({ status }) => status === 401,
  );
  expect(
    await sweep(
      () => keys.expired,
      ({ status }) => status === 401 || status === 429,
    ),
  ).toEqual([]);
});

test('after every operation with a key that may do everything, the log gives the same records', async () => {
  // Deletions last, and what lies within a record before the record.
  const rank = ({ method, path }: Operation): number => (method === 'DELETE' ? 100 - path.split('/').length : 0);
  operations = operations.filter(({ isRelayed }) => !isRelayed).toSorted((a, b) => rank(a) - rank(b));
  // What a model is deleted from is the provider, and of the models of an integration some are named in the query.
  const ofOthers = ['/v1/models/{model}', '/v1/integrations/{slug}/models'];
  const failed: string[] = [];
  for (const operation of operations) {
    const { method, path } = operation;
    const { status, text } = await send(
      method,
      addressed(operation),
      platform.adminKey,
      method === 'GET' ? undefined : {},
    );
    cells += 1;
    if (
      status >= 500 ||
      status === 401 ||
      status === 403 ||
      (method === 'DELETE' && status >= 300 && !ofOthers.includes(path))
    )
      failed.push(`${method} ${path}: ${status} ${text.slice(0, 200)}`);
  }
  expect(failed).toEqual([]);
  expect((await checkInlineModels(platform.database.pool, inlineModels)).difference).toBeNull();
  process.stdout.write(`tenant matrix: ${operations.length} operations, ${cells} cells\n`);
});

/** Written for a request, but not as its workspace: records of the organisation, what comes with a new workspace, and refusals. */
const ofOrganisation =
  /^(?:(?:user|invite|workspace|price_table|integration|secret_reference|siem_destination)\.|virtual_key\.created$|api_key\.(?:request_refused|contents_read|guardrail_failed)$)/;

test('whatever a request did to its workspace, it wrote as the role that reaches no other', async () => {
  const { rows } = await sql<{ type: string; role: string }>`
    select distinct type, role from writer where actor <> 'system'`.execute(platform.database.db);
  const asOwner = rows.filter(({ role }) => role !== tenantRole).map(({ type }) => type);
  expect(asOwner.filter((type) => !ofOrganisation.test(type))).toEqual([]);
  const asRole = new Set(rows.filter(({ role }) => role === tenantRole).map(({ type }) => type.split('.')[0]));
  const ofWorkspaces = resourceKinds.filter(({ owner = 'workspace' }) => owner === 'workspace').map(({ noun }) => noun);
  expect([...asRole]).toEqual(expect.arrayContaining([...ofWorkspaces, 'batch', 'file', 'fine_tuning_job']));
});
