import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { createWorkspace } from './second-workspace.ts';

// Parts of the event log: of a workspace, of the organisation, of a range of time, of a person, and as lines.

type Event = { id: string; type: string; stream: string; recorded_at: string };

let platform: TestPlatform;
let otherKey: string;
beforeAll(async () => {
  platform = await startPlatform();
  otherKey = await createWorkspace(platform);
});
afterAll(() => platform.stop());

async function call(method: string, path: string, options: { key?: string; body?: object; accept?: string } = {}) {
  return await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: {
      'x-gateway-api-key': options.key ?? platform.adminKey,
      'content-type': 'application/json',
      accept: options.accept ?? 'application/json',
    },
    ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }),
  });
}

async function createConfig(name: string, key?: string): Promise<string> {
  const body = { name, slug: name, config: { retry: { attempts: 2 } } };
  const made = (await (
    await call('POST', '/configs', { body, ...(key === undefined ? {} : { key }) })
  ).json()) as object;
  return (made as { id: string }).id;
}

const list = async (query: string, key?: string): Promise<Event[]> => {
  const response = await call('GET', `/events?limit=100&${query}`, key === undefined ? {} : { key });
  return ((await response.json()) as { data?: Event[] }).data ?? [];
};

const listed = (query: string, isComplete: (events: Event[]) => boolean) => eventually(() => list(query), isComplete);

/** The IDs in the first events of an endless stream. */
async function firstOfStream(query: string, count: number): Promise<string[]> {
  const response = await call('GET', `/events/stream?${query}`);
  expect(response.status).toBe(200);
  let text = '';
  const ids = () => [...text.matchAll(/^id: (.*)$/gm)].map(([, id = '']) => id);
  for await (const piece of (response.body ?? []) as AsyncIterable<Uint8Array>) {
    text += Buffer.from(piece).toString();
    if (ids().length >= count) break;
  }
  return ids();
}

test('an organisation key reads the events of another workspace and of the organisation, and other keys do not', async () => {
  const name = `elsewhere-${Date.now()}`;
  const id = await createConfig(name, otherKey);
  const own = await eventually(
    () => list(`stream=${id}`, otherKey),
    (events) => events.length === 1,
  );
  const { workspace_id: workspace } = (await (await call('GET', `/configs/${name}`, { key: otherKey })).json()) as {
    workspace_id: string;
  };
  expect(await list(`stream=${id}`)).toEqual([]);
  expect(await list(`stream=${id}&workspace_id=${workspace}`)).toEqual(own);
  const organisation = await list('workspace_id=org_default');
  expect(organisation.map(({ type }) => type)).toContain('user.created');
  const replayed = await call('GET', `/events/replay?stream=${id}&workspace_id=${workspace}`);
  expect(await replayed.json()).toMatchObject({ stream: id, state: { name } });
  expect(await firstOfStream(`workspace_id=${workspace}&stream=${id}&start_time=0`, 1)).toEqual([own[0]?.id]);
  for (const path of ['/events', '/events/stream', '/events/replay?stream=x']) {
    const address = `${path}${path.includes('?') ? '&' : '?'}workspace_id=org_default`;
    expect((await call('GET', address, { key: otherKey })).status).toBe(404);
  }
});

test('a range of time has the events that were recorded in it', async () => {
  const id = await createConfig('dated');
  for (const name of ['one', 'two', 'three']) await call('PUT', '/configs/dated', { body: { name } });
  const all = await listed(`stream=${id}`, (events) => events.length === 4);
  const [, second, third] = all;
  const range = `start_time=${second?.recorded_at}&end_time=${third?.recorded_at}`;
  const expected = all.filter(
    ({ recorded_at: at }) => at >= (second?.recorded_at ?? '') && at <= (third?.recorded_at ?? ''),
  );
  expect(await list(`stream=${id}&${range}`)).toEqual(expected);
  expect((await list(range)).filter(({ stream }) => stream === id)).toEqual(expected);
  expect(await list(`start_time=2200-01-01T00:00:00Z`)).toEqual([]);
  expect(await list(`end_time=2020-01-01T00:00:00Z`)).toEqual([]);
  const streamed = await (await call('GET', `/events/stream?stream=${id}&${range}`)).text();
  expect([...streamed.matchAll(/^id: (.*)$/gm)].map(([, found]) => found)).toEqual(expected.map((event) => event.id));
});

test('events can be read as lines, page by page', async () => {
  const id = await createConfig('lines');
  await call('PUT', '/configs/lines', { body: { name: 'again' } });
  const all = await listed(`stream=${id}`, (events) => events.length === 2);
  const first = await call('GET', `/events?stream=${id}&limit=1`, { accept: 'application/x-ndjson' });
  expect(first.headers.get('content-type')).toBe('application/x-ndjson');
  expect(
    (await first.text())
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Event),
  ).toEqual([all[0]]);
  const [, next = ''] = /^<\/v1(.*)>; rel="next"$/.exec(first.headers.get('link') ?? '') ?? [];
  const last = await call('GET', next, { accept: 'application/x-ndjson' });
  expect(JSON.parse(await last.text())).toEqual(all[1]);
  expect(last.headers.get('link')).toBeNull();
});

test('a stream of lines has the events that the list has, and no frames', async () => {
  const id = await createConfig('streamed-lines');
  await call('PUT', '/configs/streamed-lines', { body: { name: 'again' } });
  const all = await listed(`stream=${id}`, (events) => events.length === 2);
  const range = `start_time=0&end_time=${all.at(-1)?.recorded_at}`;
  const response = await call('GET', `/events/stream?stream=${id}&${range}`, { accept: 'application/x-ndjson' });
  expect(response.headers.get('content-type')).toBe('application/x-ndjson');
  const text = await response.text();
  expect(text).toBe(all.map((event) => `${JSON.stringify(event)}\n`).join(''));
});

test('the audit log of a person has the changes with each of their keys', async () => {
  type Body = { id: string; key: string; data: { id: string }[]; records: { user_id: string; resource_id: string }[] };
  const ask = async (method: string, path: string, body?: object, key = platform.adminKey) =>
    (await (await call(method, path, { key, ...(body === undefined ? {} : { body }) })).json()) as Body;
  const [owner] = (await ask('GET', '/admin/users?role=owner')).data;
  const { id: workspace } = await ask('GET', '/admin/workspaces/default');
  const keyBody = { name: 'k', user_id: owner?.id, workspace_id: workspace, scopes: ['configs.write'] };
  const keys = [
    await ask('POST', '/api-keys/workspace/user', keyBody),
    await ask('POST', '/api-keys/workspace/user', keyBody),
  ];
  const configs = await Promise.all(keys.map(({ key }, index) => createConfig(`personal-${index}`, key)));
  const changed = async (user: string | undefined) => {
    const { records } = await ask('GET', `/audit-logs?resource_type=config&user_id=${user}`);
    return records.map(({ resource_id: id }) => id).toSorted();
  };
  await eventually(
    () => changed(owner?.id),
    (found) => found.length === 2,
  );
  expect(await changed(owner?.id)).toEqual(configs.toSorted());
  expect(await changed(keys[0]?.id)).toEqual([configs[0]]);
  expect(await changed('user_another')).toEqual([]);
});
