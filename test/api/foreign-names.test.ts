import { sql } from 'kysely';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { toAreaTag } from '#apps/api/calls/relay-call.ts';
import { relayAreas } from '#libs/providers/provider.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { toBodyObject, namingMembersOf, sampleWith, type DocumentedOperation } from './naming-members.ts';
import { createRecordMaker, recordPaths, send, type RecordMaker } from './record-makers.ts';

// Whatever member of a body or query names a record, the name of another workspace's record is answered like one that nobody has.
// Members are found in the document of the API, so a new one takes part by itself.

type Documented = DocumentedOperation & { 'x-scope'?: string; tags: string[]; deprecated?: boolean };
type Operation = { method: string; path: string; documented: Documented };

let platform: TestPlatform;
let document: { paths: Record<string, Record<string, Documented>> };
let operations: Operation[];
let first: RecordMaker;
let other: RecordMaker;
const keys = { manager: '', member: '', other: '' };

beforeAll(async () => {
  platform = await startPlatform();
  document = (await (await fetch(new URL('/openapi.json', platform.baseUrl))).json()) as typeof document;
  first = createRecordMaker(platform, { key: platform.adminKey, workspaceId: 'default', name: 'only-here' });
  const { id = '' } = await first.make('/v1/admin/workspaces', { name: 'other' });
  keys.other = (await first.make('/v1/api-keys', { name: 'other', workspace_id: id }))['key'] ?? '';
  for (const role of ['manager', 'member'] as const) {
    const user_id = await first.makeUser([{ id, role }]);
    const key = { name: role, user_id, scopes: null, workspace_id: id };
    keys[role] = (await first.make('/v1/api-keys/workspace/user', key))['key'] ?? '';
  }
  other = createRecordMaker(platform, { key: keys.other, workspaceId: id, name: 'over-there' });
  const relayed = new Set(relayAreas.map(toAreaTag));
  operations = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      // What lies at a provider has no record here, and another name of a route does the same.
      .filter(([, { 'x-scope': scope, tags, deprecated }]) => {
        return scope !== undefined && deprecated !== true && !tags.some((tag) => relayed.has(tag));
      })
      .map(([method, documented]) => ({ method: method.toUpperCase(), path, documented })),
  );
  for (const { path } of operations) {
    await first.makeRecordsOf(path);
    if (!path.startsWith('/v1/admin/')) await other.makeRecordsOf(path);
  }
  other.records.set('/v1/admin/workspaces', id);
}, 60_000);
afterAll(() => platform?.stop());

/** Bodies in which a name is looked up, where one of only what the schema requires is refused before. */
const bodies: Record<string, (name: string) => object> = {
  'POST /v1/api-keys user_id': (name) => ({ name: 'x', type: 'workspace-user', user_id: name }),
  'POST /v1/fine_tuning/jobs training_file': (name) => ({ model: '@simulator/sim-small', training_file: name }),
  'POST /v1/fine_tuning/jobs validation_file': (name) => ({
    model: '@simulator/sim-small',
    training_file: other.records.get('/v1/files'),
    validation_file: name,
  }),
  'POST /v1/virtual-keys secret_mappings.[].secret_reference_id': (name) => ({
    name: 'x',
    provider: 'openai',
    secret_mappings: [{ target_field: 'key', secret_reference_id: name }],
  }),
  'PUT /v1/virtual-keys/{slug} secret_mappings.[].secret_reference_id': (name) => ({
    secret_mappings: [{ target_field: 'key', secret_reference_id: name }],
  }),
  'POST /v1/integrations secret_mappings.[].secret_reference_id': (name) => ({
    name: 'x',
    ai_provider_id: 'openai',
    workspace_id: other.records.get('/v1/admin/workspaces'),
    secret_mappings: [{ target_field: 'key', secret_reference_id: name }],
  }),
  'POST /v1/configs config': (name) => ({ name: 'x', config: { virtual_key: name } }),
};

/** An answer without what differs in any two. */
const comparable = (text: string, name: string): string =>
  text
    .replaceAll(name, 'NAME')
    .replaceAll('only-here', 'NAME')
    .replaceAll(/[a-z]+[_-][0-9a-f]{32}/g, 'ID')
    .replaceAll(/"(?:slug|request_id|created_at|last_updated_at|expires_at)":\s*(?:"[^"]*"|\d+)/g, '');

type Member = { place: string[]; isInQuery: boolean };

const nameOf = ({ method, path }: Operation, { place, isInQuery }: Member): string =>
  `${method} ${path} ${isInQuery ? '?' : ''}${place.join('.')}`;

/** Asks with a name in the place of a member of an operation. */
async function ask(key: string, operation: Operation, member: Member, name: string): Promise<string> {
  const { method, path, documented } = operation;
  const { place, isInQuery } = member;
  const query = [
    ...(path.startsWith('/v1/analytics/') ? [aDay] : []),
    ...(isInQuery ? [`${place[0]}=${encodeURIComponent(name)}`] : []),
  ].join('&');
  const schema = method === 'GET' ? undefined : toBodyObject(documented);
  const sample = schema && sampleWith(document, schema, isInQuery ? [] : place, isInQuery ? undefined : name);
  const body = bodies[nameOf(operation, member)]?.(name) ?? (sample as object | undefined);
  const { status, text } = await send(platform, method, `${addressed(path)}?${query}`, key, body);
  // What a write answers with has its own ids and times; that it was taken is all that a name can make of it.
  return method !== 'GET' && status === 200 ? '200' : `${status} ${comparable(text, name)}`;
}

const aDay = 'time_of_generation_min=2020-01-01T00:00:00Z&time_of_generation_max=2020-01-02T00:00:00Z';

/** The path with records of the other workspace. */
function addressed(path: string): string {
  if (path.endsWith('/{type}/{sub_type}')) return '/v1/api-keys/workspace/service';
  const places = recordPaths(path);
  return path.replaceAll(/\{\w+\}/g, () => encodeURIComponent(other.records.get(places.shift() ?? '') ?? 'none'));
}

/** What a member names a record by: lists go on after an id, and elsewhere slugs will do. */
async function nameIn(maker: RecordMaker, key: string, kind: string, { place }: Member): Promise<string | undefined> {
  const name = maker.records.get(kind);
  if (name === undefined || place[0] !== 'after') return name;
  const { text } = await send(platform, 'GET', `${kind}/${encodeURIComponent(name)}`, key);
  return /"id":\s*"([^"]+)"/.exec(text)?.[1];
}

/** Of the same form, and nobody's. */
const absentLike = (name: string): string => `${name.slice(0, -4)}0000`;

/** The number of changes that requests made in the first workspace. Refusals and reads are left out: they are recorded later. */
async function eventsOfFirst(): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from event
    where workspace_id = (select id from resource where kind = 'workspace' and slug = 'default')
      and type !~ '[.](request_refused|contents_read)$' and metadata -> 'actor' ->> 'type' <> 'system'`.execute(
    platform.database.db,
  );
  return rows[0]?.count ?? 0;
}

test(
  'the name of a record of another workspace is answered like a name that nobody has',
  { timeout: 120_000 },
  async () => {
    const before = await eventsOfFirst();
    const different: string[] = [];
    const kinds = new Set<string>();
    const found = new Set<string>();
    for (const operation of operations) {
      const { method, path, documented } = operation;
      for (const member of namingMembersOf(document, path, documented)) {
        // A deletion succeeds once.
        if (method === 'DELETE') continue;
        for (const kind of member.named) {
          const foreign = await nameIn(first, platform.adminKey, kind, member);
          if (foreign === undefined) continue;
          kinds.add(kind);
          // A role reads like the key of its workspace, and may not write everything.
          for (const key of method === 'GET' ? [keys.other] : Object.values(keys)) {
            const ofAbsent = await ask(key, operation, member, absentLike(foreign));
            const ofForeign = await ask(key, operation, member, foreign);
            if (ofForeign !== ofAbsent) {
              different.push(
                `${nameOf(operation, member)}: ${ofForeign.slice(0, 300)}, and not ${ofAbsent.slice(0, 300)}`,
              );
            }
          }
          const own = found.has(kind) ? undefined : await nameIn(other, keys.other, kind, member);
          if (own === undefined) continue;
          const ofAbsent = await ask(keys.other, operation, member, absentLike(own));
          if ((await ask(keys.other, operation, member, own)) !== ofAbsent) found.add(kind);
        }
      }
    }
    expect(different).toEqual([]);
    expect(await eventsOfFirst()).toBe(before);
    // Otherwise names would be refused before they are looked up, and all of the above would say nothing. A workspace lists
    // none of the organisation's records and makes no keys of users, and after its only log the list ends as after none.
    const untold = [...kinds].filter(
      (kind) => !found.has(kind) && !/^\/v1\/(?:admin\/(?!workspaces$)|logs$)/.test(kind),
    );
    expect(untold).toEqual([]);
  },
);
