import { randomBytes } from 'node:crypto';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { rebuild } from '#apps/cli/rebuild.ts';
import { tenantRole } from '#libs/database/isolate-workspaces.ts';
import { createLogger } from '#libs/kernel/logger.ts';
import { relayAreas } from '#libs/providers/provider.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, toJsonl } from './batch-kit.ts';

// Every operation of the API, as the document lists them, is called with every key that must not get anywhere: none, a wrong
// one, a revoked one, one without the scope, an expired one, the key of another workspace, and keys of users of lesser roles. A
// new route takes part by itself; one whose path names a record of a new kind needs a line in `makers`.

type Operation = { method: string; path: string; scope: string; isRelayed: boolean };
type Answer = { status: number; text: string; code: string | undefined };

/** Part of every name in the first workspace: no answer to another one may have it. */
const canary = `only-here-${randomBytes(6).toString('hex')}`;

let platform: TestPlatform;
let document: { paths: Record<string, Record<string, { 'x-scope'?: string; tags: string[] }>> };
let operations: Operation[];
/** Ids of records of the first workspace, by the path up to the parameter. */
const records = new Map<string, string>();
const keys = {
  other: '',
  revoked: '',
  expired: '',
  narrow: new Map<string, string>(),
  ofRole: new Map<string, string>(),
};
let cells = 0;

async function send(method: string, path: string, key: string | null, body?: object): Promise<Answer> {
  const form = body instanceof FormData;
  const response = await fetch(`${platform.baseUrl}${path.replace(/^\/v1/, '')}`, {
    method,
    headers: {
      ...(key === null ? {} : { 'x-gateway-api-key': key }),
      ...(form || body === undefined ? {} : { 'content-type': 'application/json' }),
    },
    ...(body === undefined ? {} : { body: form ? body : JSON.stringify(body) }),
  });
  const text = await textOf(response);
  return { status: response.status, text, code: /"code":\s*"(\w+)"/.exec(text)?.[1] };
}

/** The body of an answer; of a stream of events, which does not end, what comes first. */
async function textOf(response: Response): Promise<string> {
  if (response.headers.get('content-type')?.startsWith('text/event-stream') !== true) return await response.text();
  const reader = response.body?.getReader();
  const first = await reader?.read();
  await reader?.cancel();
  return new TextDecoder().decode(first?.value);
}

async function make(path: string, body: object, key = platform.adminKey): Promise<Record<string, string>> {
  const { status, text } = await send('POST', path, key, body);
  if (status !== 200) throw new Error(`POST ${path} was answered with ${status}: ${text}`);
  return JSON.parse(text) as Record<string, string>;
}

async function upload(purpose: string, text: string): Promise<string> {
  const form = new FormData();
  form.set('purpose', purpose);
  form.set('file', new File([text], `${canary}.jsonl`));
  return (await make('/v1/files', form))['id'] ?? '';
}

async function makeUser(workspaces: { id: string; role: string }[]): Promise<string | undefined> {
  const email = `${randomBytes(4).toString('hex')}@${canary}`;
  const { invite_link: link = '' } = await make('/v1/admin/users/invites', { email, role: 'member', workspaces });
  const token = new URL(link).searchParams.get('token');
  return (await make('/v1/admin/users/invites/accept', { token, first_name: canary }))['id'];
}

/** Make one record in the first workspace and return what a path names it by. A version needs no maker of its own. */
const makers: Record<string, () => Promise<string | undefined>> = {
  '/v1/models': async () => {
    // The other workspace has its own virtual key `simulator`, and none of this slug.
    const host = { provider: 'simulator', key: 'k', custom_host: platform.simulatorUrl };
    await make('/v1/virtual-keys', { name: 'models', slug: 'models', ...host });
    return '@models/sim-text';
  },
  '/v1/files': () => upload('batch', toJsonl([chatLine(canary)])),
  '/v1/batches': async () => {
    const input_file_id = await upload('batch', toJsonl([chatLine(canary)]));
    const batch = { input_file_id, endpoint: '/v1/chat/completions', completion_window: '24h' };
    return (await make('/v1/batches', { ...batch, metadata: { canary } }))['id'];
  },
  '/v1/batches/:/lines': () => Promise.resolve('1'),
  '/v1/fine_tuning/jobs': async () => {
    const turns = [
      { role: 'user', content: canary },
      { role: 'assistant', content: 'yes' },
    ];
    const training_file = await upload('fine-tune', toJsonl(Array.from({ length: 10 }, () => ({ messages: turns }))));
    return (await make('/v1/fine_tuning/jobs', { model: '@simulator/sim-small', training_file, suffix: 'x' }))['id'];
  },
  '/v1/admin/workspaces': async () => (await make('/v1/admin/workspaces', { name: canary }))['slug'],
  '/v1/admin/workspaces/:/users': () => makeUser([{ id: records.get('/v1/admin/workspaces') ?? '', role: 'member' }]),
  '/v1/admin/users': () => makeUser([]),
  '/v1/admin/users/invites': async () =>
    (await make('/v1/admin/users/invites', { email: `invited@${canary}`, role: 'member' }))['id'],
  '/v1/api-keys': async () => (await make('/v1/api-keys', { name: canary }))['id'],
  // A type and a sub-type, which are no records.
  '/v1/api-keys/:': () => Promise.resolve('service'),
  '/v1/configs': async () =>
    (await make('/v1/configs', { name: canary, config: { virtual_key: 'simulator' } }))['slug'],
  '/v1/guardrails': async () =>
    (await make('/v1/guardrails', { name: canary, checks: [{ id: 'default.isAllLowerCase' }] }))['slug'],
  '/v1/guardrails/:/versions': () => Promise.resolve('1'),
  '/v1/virtual-keys': async () =>
    (await make('/v1/virtual-keys', { name: canary, provider: 'openai', key: `sk-${canary}` }))['slug'],
  '/v1/secret-references': async () => {
    const auth_config = { vault_auth_type: 'token', vault_addr: 'https://vault.example', vault_token: `hvs-${canary}` };
    const reference = { name: canary, manager_type: 'hashicorp_vault', auth_config, secret_path: `secret/${canary}` };
    return (await make('/v1/secret-references', { ...reference, workspace_id: 'default' }))['slug'];
  },
  '/v1/integrations': async () => {
    const integration = { name: canary, ai_provider_id: 'openai', key: `sk-${canary}`, workspace_id: 'default' };
    return (await make('/v1/integrations', integration))['slug'];
  },
  '/v1/providers': async () =>
    (await make('/v1/providers', { name: canary, integration_id: records.get('/v1/integrations') }))['slug'],
  '/v1/collections': async () => (await make('/v1/collections', { name: canary }))['slug'],
  '/v1/admin/price-tables': async () => {
    const providers = { acme: { source: canary, as_of: '2026-01-31', models: {} } };
    return (await make('/v1/admin/price-tables', { table: { date: '2026-01-31', providers } }))['id'];
  },
  '/v1/labels': async () => (await make('/v1/labels', { name: canary }))['id'],
  '/v1/prompts/partials': async () => (await make('/v1/prompts/partials', { name: canary, string: canary }))['slug'],
  '/v1/prompts': async () => {
    const [collection_id, virtual_key] = [records.get('/v1/collections'), 'simulator'];
    const prompt = { name: canary, collection_id, string: canary, parameters: { model: 'sim-small' }, virtual_key };
    return (await make('/v1/prompts', prompt))['slug'];
  },
  '/v1/feedback': async () => (await make('/v1/feedback', { trace_id: canary, value: 1 }))['feedback_ids']?.[0],
  // A metadata key, which is no record.
  '/v1/analytics/groups/metadata': () => Promise.resolve('team'),
  '/v1/policies/usage-limits': async () => {
    const policy = {
      name: canary,
      conditions: [{ key: 'metadata.team', value: canary }],
      group_by: [{ key: 'api_key' }],
    };
    return (await make('/v1/policies/usage-limits', { ...policy, type: 'tokens', credit_limit: 1_000 }))['id'];
  },
  // Nobody used the policy yet; its own id is what must not be reached.
  '/v1/policies/usage-limits/:/entities': () => Promise.resolve('entity-1'),
  '/v1/policies/rate-limits': async () => {
    const policy = {
      name: canary,
      conditions: [{ key: 'metadata.team', value: canary }],
      group_by: [{ key: 'api_key' }],
    };
    return (await make('/v1/policies/rate-limits', { ...policy, type: 'requests', unit: 'rpm', value: 100 }))['id'];
  },
  '/v1/logs/exports': async () => {
    const { id } = await make('/v1/logs/exports', { filters: {}, requested_data: ['id'], description: canary });
    await make(`/v1/logs/exports/${id}/start`, {});
    const download = () => send('GET', `/v1/logs/exports/${id}/download`, platform.adminKey);
    await eventually(download, ({ text }) => text.includes('signed_url'));
    return id;
  },
  '/v1/logs': async () => {
    const messages = [{ role: 'user', content: canary }];
    await make('/v1/chat/completions', { model: '@simulator/sim-small', messages });
    const isLogged = ({ text }: Answer): boolean => text.includes('"id"');
    const { text } = await eventually(() => send('GET', '/v1/logs?limit=1', platform.adminKey), isLogged);
    return (JSON.parse(text) as { data: { id: string }[] }).data[0]?.id;
  },
};

beforeAll(async () => {
  platform = await startPlatform({ movableClock: true });
  await noteWriters();
  document = (await (await fetch(new URL('/openapi.json', platform.baseUrl))).json()) as typeof document;
  const areas = new Set<string>(relayAreas);
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
    const key = { name: role, user_id, workspace_id: id };
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

/** The path up to each of its parameters, with `:` in the place of those before. */
function recordPaths(path: string): string[] {
  const pieces = path.split(/\/\{\w+\}/);
  return pieces.slice(0, -1).map((_piece, index) => pieces.slice(0, index + 1).join('/:'));
}

async function makeRecordsOf(path: string): Promise<void> {
  for (const place of recordPaths(path)) {
    if (records.has(place)) continue;
    const id = place.endsWith('/versions') ? '1' : await makers[place]?.();
    if (id === undefined) throw new Error(`${path} names a record below ${place}: add to 'makers' how one is made`);
    records.set(place, id);
  }
}

/** The path with ids of records of the first workspace; those at a provider have none here. */
function addressed({ path, isRelayed }: Operation): string {
  const places = recordPaths(path);
  return path.replaceAll(/\{\w+\}/g, () => {
    const place = places.shift() ?? '';
    return isRelayed ? 'object-1' : encodeURIComponent(records.get(place) ?? '');
  });
}

/** Analytics are of a time. */
const rangeOf = ({ path }: Operation): string =>
  path.startsWith('/v1/analytics/')
    ? '?time_of_generation_min=2020-01-01T00:00:00Z&time_of_generation_max=2020-01-02T00:00:00Z'
    : '';

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
    const isRecord = method === 'GET' && named.endsWith('}') && !isRelayed && !named.startsWith('/v1/analytics/');
    if (!isRecord) continue;
    const path = addressed(operation);
    const { status, text } = await send('GET', path, platform.adminKey);
    expect([path, status]).toEqual([path, 200]);
    read[path] = JSON.parse(text);
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
  const isClosed = ({ status }: Answer, { method, path, isRelayed }: Operation): boolean => {
    if (isRelayed || status >= 400) return status < 500;
    // What belongs to the other workspace itself may be read and changed, and its lists are its own.
    return recordPaths(path).length === 0 && (method === 'GET' || path === '/v1/admin/guardrails');
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
    const isClosed = ({ status, code }: Answer, { method, path, isRelayed, scope }: Operation): boolean => {
      if (forbidden[role]?.test(scope)) return status === 403 && code === 'missing_scope';
      if (isRelayed || status >= 400) return status < 500;
      return recordPaths(path).length === 0 && method === 'GET';
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
    const { status, text } = await send('GET', addressed(operation) + rangeOf(operation), platform.adminKey);
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
  const { connectionString } = platform.database;
  const logger = createLogger({ name: 'test', level: 'silent' });
  const report = await rebuild({ connectionString, check: true, onProgress: () => {} }, logger);
  expect(report.difference).toBeNull();
  process.stdout.write(`tenant matrix: ${operations.length} operations, ${cells} cells\n`);
});

/** Written for a request, but not as its workspace: records of the organisation, what comes with a new workspace, and refusals. */
const ofOrganisation =
  /^(?:(?:user|invite|workspace|price_table|integration|secret_reference)\.|virtual_key\.created$|api_key\.request_refused$)/;

test('whatever a request did to its workspace, it wrote as the role that reaches no other', async () => {
  const { rows } = await sql<{ type: string; role: string }>`
    select distinct type, role from writer where actor <> 'system'`.execute(platform.database.db);
  const asOwner = rows.filter(({ role }) => role !== tenantRole).map(({ type }) => type);
  expect(asOwner.filter((type) => !ofOrganisation.test(type))).toEqual([]);
  const asRole = new Set(rows.filter(({ role }) => role === tenantRole).map(({ type }) => type.split('.')[0]));
  const ofWorkspaces = resourceKinds.filter(({ owner = 'workspace' }) => owner === 'workspace').map(({ noun }) => noun);
  expect([...asRole]).toEqual(expect.arrayContaining([...ofWorkspaces, 'batch', 'file', 'fine_tuning_job']));
});
