import { randomBytes } from 'node:crypto';
import { sql, type Kysely } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { z } from 'zod';
import { createAccessSnapshot, type AccessSnapshot } from '#libs/snapshot/access-snapshot.ts';
import { parseMasterKeys } from '#libs/secrets/master-key.ts';
import { createSecrets } from '#libs/secrets/secrets.ts';
import { recordKindOf } from '#apps/cli/records/record-kinds.ts';
import { scopes } from '#libs/contracts/people/api-keys.ts';
import { text } from '#libs/contracts/scalars.ts';
import type { Database } from '#libs/database/schema.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import type { AnyInlineModel } from '#libs/event-log/inline-model.ts';
import { checkInlineModels, rebuildInlineModels } from '#libs/event-log/rebuild.ts';
import type { Caller } from '#libs/http/caller.ts';
import { authenticateForTest, serveForTest, type TestServer } from '#libs/http/http-test-kit.ts';
import { toOpenApi } from '#libs/http/openapi.ts';
import { getRoleScopes } from '#libs/http/roles.ts';
import { systemClock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { defineResource } from '#libs/records/define-resource.ts';
import { listResources } from '#libs/records/lists/list-resources.ts';
import { eventTypesOf, resourceModel, resourceVersionModel } from '#libs/records/resource-model.ts';
import { resourceRoutes } from '#libs/records/resource-routes.ts';
import { tagsOf } from '#libs/records/resource-texts.ts';
import { testPeople } from '#test/people-options.ts';
import { useTestDatabase } from '#test/postgres.ts';

// A kind of record that no part of the product knows: this definition is all there is of it.

const fields = {
  name: text({ min: 1, max: 50 }),
  kitchen: z.enum(['hot', 'cold']),
  steps: z.array(z.string()).default([]),
  note: text({ max: 100 }).nullish(),
  alarm_code: text({ min: 1, max: 50 }).optional(),
};
type Recipe = { name: string; kitchen: 'hot' | 'cold'; steps: string[]; note: string | null };
type LiveRecipe = { steps: readonly string[]; code: string | null };

const viewSchema = z.looseObject({ id: z.string() });

const recipe = defineResource<typeof fields, Recipe, LiveRecipe>({
  noun: 'recipe',
  idPrefix: 'recipe_',
  area: 'recipes',
  path: '/v1/recipes',
  names: { one: 'recipe', many: 'recipes', tag: 'Recipes', about: 'What is cooked.' },
  texts: { create: { description: 'Stores a recipe.', example: { name: 'Soup', kitchen: 'hot' } } },
  fields,
  changes: { immutable: ['kitchen'] },
  slugs: {},
  secrets: ['alarm_code'],
  view: ({ data: { name, kitchen, steps, note }, deleted_at }) => ({
    name,
    kitchen,
    steps,
    note: note ?? null,
    status: deleted_at ? 'deleted' : 'active',
  }),
  viewSchema,
  filters: { kitchen: { schema: z.string(), field: 'kitchen', match: 'equal' } },
  check(input) {
    if (input.steps?.includes('burn')) {
      throw new GatewayError('invalid_request', 'invalid_value', "Invalid 'steps': do not burn it.", {
        param: 'steps',
      });
    }
    return { data: JSON.parse(JSON.stringify(input)) as Partial<Recipe> };
  },
  cached: { toEntry: ({ data }, secrets) => ({ steps: data.steps, code: secrets?.['alarm_code']?.reveal() ?? null }) },
});

const draftFields = {
  name: text({ min: 1, max: 50 }),
  body: text({ max: 1_000 }),
  title: text({ max: 50 }).optional(),
};

/** Its versions are put into use on request. */
const draft = defineResource<typeof draftFields, { name: string; body: string; title?: string; draft_version: number }>(
  {
    noun: 'draft',
    idPrefix: 'draft_',
    area: 'drafts',
    path: '/v1/drafts',
    names: { one: 'draft', many: 'unpublished drafts', tag: 'Drafts' },
    fields: draftFields,
    view: ({ data, last_version }) => ({ ...data, version: data.draft_version, last_version }),
    viewSchema,
    versions: { fields: ['body', 'title'], publish: 'on_request' },
  },
);

const badgeFields = { name: text({ min: 1, max: 50 }), colour: z.enum(['red', 'blue']).default('red') };

const badge = defineResource<typeof badgeFields, { name: string; colour: string }>({
  noun: 'badge',
  idPrefix: 'badge_',
  area: 'badges',
  path: '/v1/badges',
  names: { one: 'badge', many: 'badges', tag: 'Badges' },
  owner: 'organisation',
  fields: badgeFields,
  slugs: {},
  view: ({ data: { name, colour } }) => ({ name, colour }),
  viewSchema,
  locks: ['badge rules'],
  filters: { wanted: { schema: z.string(), where: (name: string) => sql`data ->> 'name' like ${name} || '%'` } },
  details: {
    read: async (_row, { db }) => {
      const { rows } = await sql<{ badges: number }>`
        select count(*)::int as badges from resource where kind = 'badge' and deleted_at is null`.execute(db);
      return rows[0] ?? {};
    },
  },
  // A new badge ends the older one of its name.
  creation: {
    also: {
      streams: async (_input, { db }) => (await activeBadges(db)).map(({ id }) => id),
      async run(unit, { name }, { row, locked }) {
        for (const badge of await activeBadges(unit.tx)) {
          const isTaken = badge.id !== row.id && badge.name === name && locked.includes(badge.id);
          if (isTaken) await unit.append(badgeModel, badge.id, [{ type: 'badge.deleted', data: {} }]);
        }
      },
    },
  },
  removal: {
    also: {
      streams: () => [],
      async run(_unit, { data }) {
        if (data.colour === 'blue') throw new GatewayError('conflict', 'blue', 'A blue badge stays.');
        await Promise.resolve();
      },
    },
  },
});
const badgeModel = resourceModel([badge]);

async function activeBadges(db: Kysely<Database>): Promise<{ id: string; name: string }[]> {
  const { rows } = await sql<{ id: string; name: string }>`
    select id, data ->> 'name' as name from resource where kind = 'badge' and deleted_at is null`.execute(db);
  return rows;
}

const kinds = [recipe, draft, badge];
const models = [resourceModel(kinds), resourceVersionModel(kinds)] as unknown as AnyInlineModel[];
const database = useTestDatabase();
let server: TestServer;
let snapshot: AccessSnapshot;

const routesOf = () => {
  const eventLog = createEventLog(database.db);
  const secrets = createSecrets({ masterKeys: parseMasterKeys(randomBytes(32).toString('hex')) });
  const logger = createLogger({ name: 'test', level: 'silent' });
  snapshot = createAccessSnapshot({ db: database.db, secrets, logger, kinds, listenConnectionString: null });
  const rules = { checkDestination: () => {}, scopes: () => new Set<string>(), people: testPeople };
  const deps = { db: database.db, eventLog, secrets, snapshot, clock: systemClock, ...rules };
  return kinds.flatMap((kind) => resourceRoutes(kind, deps));
};

beforeAll(async () => {
  // `Bearer <scope>@<workspace>`, so that one server is asked by several workspaces.
  const authenticate = (request: { headers: { authorization?: string | undefined } }): Caller => {
    const [scope = '', workspaceId = 'ws_1'] = (request.headers.authorization ?? '').split('@');
    const caller = authenticateForTest({ headers: { authorization: scope } });
    const type = workspaceId === 'ws_admin' ? 'organisation_key' : 'service_key';
    const keyId = `key_${workspaceId}`;
    return { ...caller, workspaceId, keyId, principal: { type, id: keyId, role: null } };
  };
  const routes = routesOf();
  await snapshot.start?.();
  server = await serveForTest(routes, { deps: { authenticate } });
});
afterAll(async () => {
  await server[Symbol.asyncDispose]();
  await snapshot.stop?.();
});

type Answer = { status: number; headers: Headers; body: Record<string, never> & { data: Record<string, unknown>[] } };

async function ask(method: string, path: string, body?: object, headers: Record<string, string> = {}): Promise<Answer> {
  const response = await fetch(`${server.url}${path}`, {
    method,
    headers: { authorization: 'Bearer all', 'content-type': 'application/json', ...headers },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, headers: response.headers, body: (await response.json()) as Answer['body'] };
}

const soup = { name: 'Hot Soup!', kitchen: 'hot', alarm_code: '4711' };

test('a record is created under a slug of its name, shown without its secret, changed in part and deleted', async () => {
  const made = await ask('POST', '/v1/recipes', soup);
  expect(made).toMatchObject({
    status: 200,
    body: { object: 'recipe', slug: 'hot-soup', name: 'Hot Soup!', kitchen: 'hot', steps: [], note: null },
  });
  expect(made.body).toMatchObject({ id: expect.stringMatching(/^recipe_[0-9a-f]{32}$/), status: 'active' });
  expect(JSON.stringify(made.body)).not.toMatch(/4711|secret/);
  expect((await ask('POST', '/v1/recipes', soup)).body).toMatchObject({ slug: 'hot-soup-2' });
  expect(await ask('POST', '/v1/recipes', { ...soup, slug: 'hot-soup' })).toMatchObject({
    status: 409,
    body: { error: { code: 'slug_taken', param: 'slug' } },
  });

  expect((await ask('PUT', '/v1/recipes/hot-soup', { steps: ['boil'] })).body).toMatchObject({ steps: ['boil'] });
  const renamed = await ask('PUT', '/v1/recipes/hot-soup', { name: 'Soup' });
  expect(renamed.body).toMatchObject({ name: 'Soup', steps: ['boil'], slug: 'hot-soup' });
  expect((await ask('GET', `/v1/recipes/${String(made.body['id'])}`)).body).toEqual(renamed.body);
  expect(await ask('PUT', '/v1/recipes/hot-soup', { kitchen: 'cold' })).toMatchObject({
    status: 400,
    body: { error: { code: 'unknown_parameter', param: 'kitchen' } },
  });
  expect(await ask('PUT', '/v1/recipes/hot-soup', { steps: ['burn'] })).toMatchObject({ status: 400 });

  expect((await ask('DELETE', '/v1/recipes/hot-soup')).body).toEqual({
    id: made.body['id'],
    object: 'recipe',
    slug: 'hot-soup',
    deleted: true,
  });
  expect(await ask('GET', '/v1/recipes/hot-soup')).toMatchObject({
    status: 404,
    body: { error: { code: 'recipe_not_found', message: "There is no recipe 'hot-soup'." } },
  });
  expect((await ask('POST', '/v1/recipes', soup)).body).toMatchObject({ slug: 'hot-soup' });
});

test('its events say what changed, and no secret is in them', async () => {
  const { id, slug } = (await ask('POST', '/v1/recipes', { ...soup, name: 'Log' })).body;
  await ask('PUT', `/v1/recipes/${slug}`, { note: 'salty' });
  await ask('PUT', `/v1/recipes/${slug}`, { note: 'salty' });
  await ask('DELETE', `/v1/recipes/${slug}`);
  const { rows } = await sql<{ type: string; data: object; metadata: object }>`
    select type, data, metadata from event where stream_id = ${id} order by stream_version`.execute(database.db);
  expect(rows).toMatchObject([
    { type: 'recipe.created', data: { slug: 'log', name: 'Log', kitchen: 'hot', steps: [] } },
    { type: 'recipe.updated', data: { note: 'salty' } },
    { type: 'recipe.deleted', data: {} },
  ]);
  expect(JSON.stringify(rows)).not.toContain('4711');
  expect(rows[0]?.metadata).toMatchObject({ actor: { type: 'api_key', id: 'key_ws_1' } });
});

test('a repeated creation makes one record and gets the first answer', async () => {
  const key = { 'idempotency-key': 'one' };
  const first = await ask('POST', '/v1/recipes', { ...soup, name: 'Once' }, key);
  const again = await ask('POST', '/v1/recipes', { ...soup, name: 'Once' }, key);
  expect(again.body).toEqual(first.body);
  expect(again.headers.get('idempotent-replayed')).toBe('true');
  expect(await ask('POST', '/v1/recipes', { ...soup, name: 'Twice' }, key)).toMatchObject({ status: 409 });
});

test('its list is paged by the last id or by the number of the page, and filtered', async () => {
  const workspace = { authorization: 'Bearer all@ws_pages' };
  for (const name of ['a', 'b', 'c', 'd', 'e']) {
    await ask('POST', '/v1/recipes', { name, kitchen: name === 'a' ? 'cold' : 'hot' }, workspace);
  }
  const page = async (query: string) => (await ask('GET', `/v1/recipes?${query}`, undefined, workspace)).body;
  const names = (body: Answer['body']) => body.data.map(({ name }) => name).join('');
  const first = await page('limit=2');
  expect([names(first), first['has_more'], first['total']]).toEqual(['ed', true, 5]);
  const second = await page(`limit=2&after=${String(first['last_id'])}`);
  expect([names(second), second['has_more'], second['total']]).toEqual(['cb', true, 5]);
  expect(names(await page('current_page=1&page_size=2'))).toBe('cb');
  const last = await page('current_page=2&page_size=2');
  expect([names(last), last['has_more'], last['total']]).toEqual(['a', false, 5]);
  const cold = await page('kitchen=cold');
  expect([names(cold), cold['total']]).toEqual(['a', 1]);
  expect(await page('current_page=1&after=x')).toMatchObject({ error: { param: 'current_page' } });
  expect(await page('after=recipe_none')).toMatchObject({ error: { code: 'invalid_value', param: 'after' } });
  expect(await page('size=3')).toMatchObject({ error: { code: 'unknown_parameter', param: 'size' } });
});

test('the total of a list is exact up to 10,000, and stays there for more', async () => {
  const add = (from: number, to: number) =>
    sql`
      insert into resource select 'many_' || n, 'ws_many', 1, now(), 'recipe', null, null, '{}', null, now(), null
      from generate_series(${from}::int, ${to}::int) as n`.execute(database.db);
  const total = async () => {
    const page = { workspaceId: 'ws_many', after: null, skip: 0, limit: 1 };
    return (await listResources(database.db, recipe, page)).total;
  };
  await add(1, 9_999);
  expect(await total()).toBe(9_999);
  await add(10_000, 10_002);
  expect(await total()).toBe(10_000);
  await sql`delete from resource where workspace_id = 'ws_many'`.execute(database.db);
});

test('another workspace sees nothing of it, and its slug is free there', async () => {
  const other = { authorization: 'Bearer all@ws_other' };
  const { id } = (await ask('POST', '/v1/recipes', { ...soup, name: 'Mine' })).body;
  for (const [method, body] of [['GET'], ['PUT', { note: 'x' }], ['DELETE']] as const) {
    for (const name of ['mine', String(id)]) {
      expect(await ask(method, `/v1/recipes/${name}`, body, other)).toMatchObject({ status: 404 });
    }
  }
  expect((await ask('GET', '/v1/recipes', undefined, other)).body).toMatchObject({ data: [], total: 0 });
  expect((await ask('GET', `/v1/recipes?after=${id}`, undefined, other)).status).toBe(400);
  expect((await ask('POST', '/v1/recipes', { ...soup, name: 'Mine' }, other)).body).toMatchObject({ slug: 'mine' });
});

test('what the organisation owns is seen and changed by its keys alone', async () => {
  const admin = { authorization: 'Bearer all@ws_admin' };
  const made = await ask('POST', '/v1/badges', { name: 'Gold', colour: 'blue' }, admin);
  expect(made).toMatchObject({ status: 200, body: { slug: 'gold', colour: 'blue' } });
  // A member that has a default keeps its value when it is left out.
  expect((await ask('PUT', '/v1/badges/gold', { name: 'G' }, admin)).body).toMatchObject({ name: 'G', colour: 'blue' });
  expect((await ask('GET', '/v1/badges', undefined, admin)).body).toMatchObject({ total: 1 });
  expect((await ask('GET', '/v1/badges')).body).toMatchObject({ total: 0 });
  expect((await ask('GET', '/v1/badges/gold')).status).toBe(404);
  expect((await ask('PUT', '/v1/badges/gold', { name: 'x' })).status).toBe(404);
  expect((await ask('DELETE', `/v1/badges/${String(made.body['id'])}`)).status).toBe(404);
  expect(await ask('POST', '/v1/badges', { name: 'x' })).toMatchObject({
    status: 403,
    body: { error: { code: 'organisation_key_required' } },
  });
  await ask('PUT', '/v1/badges/gold', { colour: 'red' }, admin);
  expect((await ask('DELETE', '/v1/badges/gold', undefined, admin)).status).toBe(200);
});

test('creating and deleting one may change others, or be refused, in the same transaction', async () => {
  const admin = { authorization: 'Bearer all@ws_admin' };
  const first = (await ask('POST', '/v1/badges', { name: 'Swimmer' }, admin)).body;
  const second = (await ask('POST', '/v1/badges', { name: 'Swimmer', colour: 'blue' }, admin)).body;
  expect((await ask('GET', `/v1/badges/${String(first['id'])}`, undefined, admin)).status).toBe(404);
  const shown = (await ask('GET', `/v1/badges/${String(second['id'])}`, undefined, admin)).body;
  expect(shown).toMatchObject({ name: 'Swimmer', badges: 1 });
  expect((await ask('GET', '/v1/badges?wanted=Swim', undefined, admin)).body).toMatchObject({ total: 1 });
  expect((await ask('GET', '/v1/badges?wanted=Run', undefined, admin)).body).toMatchObject({ total: 0 });
  expect(await ask('DELETE', `/v1/badges/${String(second['id'])}`, undefined, admin)).toMatchObject({
    status: 409,
    body: { error: { code: 'blue' } },
  });
});

test('keys and roles get its scopes, and the command line its commands', () => {
  expect(scopes).toEqual(expect.arrayContaining(['recipes.read', 'recipes.write', 'badges.write']));
  const held = ['manager', 'member'].map((role) => getRoleScopes(role as 'manager') as ReadonlySet<string>);
  expect(held.map((of) => [of.has('recipes.read'), of.has('recipes.write')])).toEqual([
    [true, true],
    [true, false],
  ]);
  expect(kinds.map(recordKindOf)[0]).toMatchObject({ kind: 'recipe', command: 'recipes', path: '/v1/recipes' });
  expect(kinds.flatMap(eventTypesOf)).toContain('draft.version_published');
});

test('its routes need the scopes of its area', async () => {
  const reader = { authorization: 'Bearer recipes.read' };
  expect((await ask('GET', '/v1/recipes', undefined, reader)).status).toBe(200);
  expect(await ask('POST', '/v1/recipes', soup, reader)).toMatchObject({
    status: 403,
    body: { error: { code: 'missing_scope' } },
  });
});

test('every process has it in memory, with its secret, until it is deleted', async () => {
  const { id, slug } = (await ask('POST', '/v1/recipes', { ...soup, name: 'Live' })).body;
  const live = () => snapshot.live<LiveRecipe>(recipe).byId.get(String(id));
  expect(live()).toEqual({ steps: [], code: '4711' });
  expect(snapshot.live<LiveRecipe>(recipe).bySlug.get('ws_1')?.get(String(slug))).toBe(live());
  await ask('PUT', `/v1/recipes/${slug}`, { alarm_code: '0815', steps: ['stir'] });
  expect(live()).toEqual({ steps: ['stir'], code: '0815' });
  await ask('PUT', `/v1/recipes/${slug}`, { note: 'as it was' });
  expect(live()).toEqual({ steps: ['stir'], code: '0815' });
  await ask('DELETE', `/v1/recipes/${slug}`);
  expect(live()).toBeUndefined();
  const { rows } = await sql`select from secret where owner_id = ${id}`.execute(database.db);
  expect(rows).toEqual([]);
});

test('a change may repeat the name in its path, and name no other record', async () => {
  const { slug } = (await ask('POST', '/v1/recipes', { name: 'Repeated', kitchen: 'hot' })).body;
  expect((await ask('PUT', `/v1/recipes/${slug}`, { slug, note: 'n' })).body).toMatchObject({ slug, note: 'n' });
  expect(await ask('PUT', `/v1/recipes/${slug}`, { slug: 'other', note: 'n' })).toMatchObject({
    status: 400,
    body: { error: { param: 'slug' } },
  });
});

test('versions are numbered, keep what they were, and are put into use by an event of their own', async () => {
  const { id } = (await ask('POST', '/v1/drafts', { name: 'n', body: 'one', title: 'T' })).body;
  expect((await ask('PUT', `/v1/drafts/${id}`, { body: 'two' })).body).toMatchObject({
    body: 'one',
    version: 1,
    last_version: 2,
  });
  await ask('PUT', `/v1/drafts/${id}`, { name: 'renamed' });
  // What the newest version says already makes no other one.
  expect((await ask('PUT', `/v1/drafts/${id}`, { body: 'two' })).body).toMatchObject({ last_version: 2 });
  const versions = (await ask('GET', `/v1/drafts/${id}/versions`)).body;
  expect(versions).toMatchObject({
    total: 2,
    data: [
      { version: 2, body: 'two', title: 'T' },
      { version: 1, body: 'one' },
    ],
  });
  expect((await ask('GET', `/v1/drafts/${id}/versions?after=${id}@2`)).body.data).toHaveLength(1);
  expect((await ask('GET', `/v1/drafts/${id}/versions/1`)).body).toMatchObject({ body: 'one', draft_id: id });
  expect((await ask('GET', `/v1/drafts/${id}/versions/${id}@2`)).body).toMatchObject({ body: 'two' });
  expect((await ask('GET', `/v1/drafts/${id}@latest`)).body).toMatchObject({ id: `${id}@2`, body: 'two' });
  expect((await ask('GET', `/v1/drafts/${id}@1`)).body).toMatchObject({ body: 'one' });
  expect((await ask('GET', `/v1/drafts/${id}@nowhere`)).status).toBe(404);
  expect(await ask('GET', `/v1/drafts/${id}/versions/3`)).toMatchObject({
    status: 404,
    body: { error: { code: 'draft_version_not_found' } },
  });
  expect((await ask('PUT', `/v1/drafts/${id}/makeDefault`, { version: 2 })).body).toMatchObject({ body: 'two' });
  await ask('PUT', `/v1/drafts/${id}/makeDefault`, { version: 2 });
  expect((await ask('PUT', `/v1/drafts/${id}/makeDefault`, { version: 9 })).status).toBe(404);
  expect((await ask('GET', `/v1/drafts/${id}`)).body).toMatchObject({ body: 'two', version: 2, last_version: 2 });
  const { rows } = await sql<{ type: string }>`select type from event where stream_id = ${id}`.execute(database.db);
  expect(rows.filter(({ type }) => type === 'draft.version_published')).toHaveLength(1);
});

test('the documentation has all of its operations, and names what they take', () => {
  const options = { title: 't', description: 'd', baseUrl: 'http://x', tags: tagsOf(kinds) };
  const document = toOpenApi(routesOf(), options);
  expect(document.tags).toContainEqual({ name: 'Recipes', description: 'What is cooked.' });
  const create = document.paths['/v1/recipes']?.['post'];
  expect(create).toMatchObject({ tags: ['Recipes'], 'x-scope': 'recipes.write' });
  expect(create?.['description']).toContain('Stores a recipe.');
  expect(JSON.stringify(create?.['requestBody'])).toContain('"example":{"name":"Soup"');
  const ids = Object.values(document.paths).flatMap((path) => Object.values(path).map((one) => one['operationId']));
  expect(ids).toEqual(
    expect.arrayContaining(['listUnpublishedDrafts', 'createRecipe', 'listRecipes', 'updateRecipe', 'deleteRecipe']),
  );
  expect(ids).toEqual(expect.arrayContaining(['retrieveRecipe', 'listDraftVersions', 'retrieveDraftVersion']));
  const body = document.paths['/v1/recipes/{slug}']?.['put']?.['requestBody'];
  expect(JSON.stringify(body)).toContain('alarm_code');
  expect(JSON.stringify(body)).not.toMatch(/kitchen|"default"/);
});

test('its rows and versions are what the log says, and a rebuild repairs them', async () => {
  const check = () => checkInlineModels(database.pool, models);
  const before = await check();
  expect(before.difference).toBeNull();
  expect(before.rows).toMatchObject({ resource: expect.any(Number), resource_version: 2 });
  expect(before.rows['resource']).toBeGreaterThan(10);
  await sql`update resource set data = data || '{"note":"forged"}' where kind = 'recipe'`.execute(database.db);
  await sql`delete from resource_version where number = 2`.execute(database.db);
  expect((await check()).difference).toMatchObject({ model: 'resource' });
  await rebuildInlineModels(database.pool, models);
  expect((await check()).difference).toBeNull();
});
