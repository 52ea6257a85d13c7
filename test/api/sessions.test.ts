import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { version } from '#libs/kernel/version.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';

// The session of a browser, and the stream of events that its pages follow.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false, environment: { SLUICE_EVENT_STREAMS_OF_WORKSPACE: '4' } });
});
afterAll(() => platform?.stop());

type Answer = { status: number; body: Record<string, unknown>; cookie: string | null };

async function send(method: string, path: string, headers: Record<string, string>, body?: object): Promise<Answer> {
  const response = await fetch(`${platform.baseUrl}${path}`, {
    method,
    headers: { ...headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const cookie = response.headers.get('set-cookie')?.split(';')[0] ?? null;
  return { status: response.status, body: (await response.json()) as Record<string, unknown>, cookie };
}

const withKey = (key = platform.adminKey): Record<string, string> => ({ 'x-gateway-api-key': key });

async function makeKey(fields: object = {}): Promise<{ id: string; key: string }> {
  const { body } = await send('POST', '/api-keys', withKey(), { name: 'of a test', ...fields });
  return body as { id: string; key: string };
}

async function signIn(key: string): Promise<string> {
  const { status, cookie } = await send('POST', '/session', withKey(key));
  expect(status).toBe(200);
  return cookie ?? '';
}

test('any key may ask who it is, whatever its scopes are', async () => {
  const { key, id } = await makeKey({ name: 'narrow', scopes: ['models.read'] });
  const { body } = await send('GET', '/session', withKey(key));
  expect(body).toMatchObject({
    object: 'session',
    workspace: { slug: 'default' },
    principal: { type: 'service_key', name: 'narrow', role: null },
    key_id: id,
    scopes: ['models.read'],
    expires_at: null,
  });
  expect((await send('GET', '/session', {})).status).toBe(401);
});

test('a session may do what its key may do, and ends when the key is revoked', async () => {
  const { id, key } = await makeKey({ scopes: ['batches.read'] });
  const cookie = await signIn(key);
  expect((await send('GET', '/batches', { cookie })).status).toBe(200);
  expect((await send('GET', '/logs', { cookie })).body).toMatchObject({ error: { code: 'missing_scope' } });
  await send('DELETE', `/api-keys/${id}`, withKey());
  await eventually(
    () => send('GET', '/batches', { cookie }),
    ({ status }) => status === 401,
  );
});

test('another page cannot use the session to change something, and the console can', async () => {
  const cookie = await signIn(platform.adminKey);
  const body = { name: 'made by a browser' };
  expect((await send('POST', '/api-keys', { cookie }, body)).body).toMatchObject({ error: { code: 'foreign_page' } });
  const origin = { cookie, 'x-sluice-console': '1', origin: 'https://evil.example' };
  expect((await send('POST', '/api-keys', origin, body)).status).toBe(403);
  expect((await send('POST', '/api-keys', { cookie, 'x-sluice-console': '1' }, body)).status).toBe(200);
});

test('a made-up cookie is as good as none, and signing out deletes the real one', async () => {
  expect((await send('GET', '/batches', { cookie: 'sluice_session=abcdef' })).status).toBe(401);
  const { cookie, body } = await send('DELETE', '/session', {});
  expect(cookie).toBe('sluice_session=');
  expect(body).toEqual({ object: 'session.deleted', deleted: true, ended: 0 });
});

const ofConsole = (cookie: string): Record<string, string> => ({ cookie, 'x-sluice-console': '1' });
const statusWith = async (cookie: string): Promise<number> => (await send('GET', '/session', { cookie })).status;

test('signing out ends the session and a copy of its cookie, and nothing else', async () => {
  const { key } = await makeKey();
  const [one, other] = [await signIn(key), await signIn(key)];
  expect((await send('DELETE', '/session', ofConsole(one))).body).toMatchObject({ ended: 1 });
  expect(await send('GET', '/session', { cookie: one })).toMatchObject({
    status: 401,
    body: { error: { code: 'session_ended' } },
  });
  expect(await statusWith(other)).toBe(200);
  expect((await send('GET', '/session', withKey(key))).status).toBe(200);
  const last = await signIn(key);
  expect((await send('DELETE', '/session?everywhere=true', ofConsole(last))).body).toMatchObject({ ended: 2 });
  expect([await statusWith(other), await statusWith(last)]).toEqual([401, 401]);
});

test('sessions are listed with where they are from, and ended by a key that may do as much', async () => {
  const { id: keyId, key } = await makeKey({ scopes: ['batches.read', 'models.read'] });
  const cookie = await signIn(key);
  const { body: own } = await send('GET', '/session', { cookie });
  const id = String(own['session_id']);
  const list = (by: string) => send('GET', `/sessions?principal_id=${keyId}`, withKey(by));
  expect((await list(platform.adminKey)).body['data']).toMatchObject([
    { id, key_id: keyId, status: 'active', user_agent: 'node', address: '127.0.0.1' },
  ]);
  expect((await list(key)).status).toBe(403);
  const weaker = await makeKey({ scopes: ['api_keys.read', 'api_keys.write', 'batches.read'] });
  expect(await send('DELETE', `/sessions/${id}`, withKey(weaker.key))).toMatchObject({
    status: 403,
    body: { error: { code: 'insufficient_scope' } },
  });
  expect((await send('DELETE', `/sessions/${id}`, withKey())).status).toBe(200);
  expect(await statusWith(cookie)).toBe(401);
});

test('anyone lists and ends their own sessions without a scope, and no others', async () => {
  const { key, id: keyId } = await makeKey({ scopes: ['models.read'] });
  const [one, other] = [await signIn(key), await signIn(key)];
  const idOf = async (cookie: string) => String((await send('GET', '/session', { cookie })).body['session_id']);
  const [id, otherId, foreignId] = [await idOf(one), await idOf(other), await idOf(await signIn(platform.adminKey))];
  const { body } = await send('GET', '/session/all', { cookie: one });
  expect(body).toMatchObject({
    object: 'list',
    data: [{ id: otherId, object: 'browser-session', principal: { id: keyId }, user_agent: 'node' }, { id }],
  });
  const end = (wanted: string) => send('DELETE', `/session?id=${wanted}`, ofConsole(one));
  expect(await end(foreignId)).toMatchObject({ status: 404, body: { error: { param: 'id' } } });
  expect(await end(otherId)).toMatchObject({ status: 200, body: { ended: 1 }, cookie: null });
  expect([await statusWith(other), await statusWith(one)]).toEqual([401, 200]);
  expect(await end(id)).toMatchObject({ status: 200, body: { ended: 1 }, cookie: 'sluice_session=' });
  expect((await send('GET', '/session/all', withKey(key))).body['data']).toEqual([]);
});

test('a user or key that signs in again and again is slowed down', async () => {
  const { key } = await makeKey({ scopes: ['models.read'] });
  for (let times = 0; times < 30; times += 1) await signIn(key);
  expect(await send('POST', '/session', withKey(key))).toMatchObject({
    status: 429,
    body: { error: { code: 'too_many_sessions' } },
  });
});

test('signing in and out, and a refused sign-in, are in the log, however often it is tried', async () => {
  const { id: keyId, key } = await makeKey();
  const cookie = await signIn(key);
  const { body } = await send('GET', '/session', { cookie });
  await send('DELETE', '/session', ofConsole(cookie));
  const id = String(body['session_id']);
  const { body: events } = await send('GET', `/events?stream=${id}`, withKey());
  expect(events['data']).toMatchObject([
    { type: 'session.created', data: { key_id: keyId, address: '127.0.0.1' }, metadata: { actor: { id: keyId } } },
    { type: 'session.ended', metadata: { actor: { id: keyId } } },
  ]);
  for (let times = 0; times < 5; times += 1) {
    const refused = await fetch(`${platform.baseUrl}/session`, { method: 'POST', headers: withKey('slk_wrong') });
    expect(refused.status).toBe(401);
  }
  await platform.api.facts.flush();
  const { rows } = await platform.database.pool.query<{ data: { count: number; code: string } }>(
    "select data from event where type = 'session.refused' order by position",
  );
  expect(rows.reduce((sum, { data }) => sum + data.count, 0)).toBe(5);
  expect(rows.length).toBeLessThanOrEqual(2);
});

/** An open stream: the frames that came so far, and whether the server has ended it. */
async function openStream(
  key: string,
  options: { path?: string; query?: string; headers?: Record<string, string> } = {},
): Promise<{ status: number; text: () => string; hasEnded: () => boolean; close: () => void }> {
  const { path = '/events/stream', query = '', headers = {} } = options;
  const closing = new AbortController();
  const response = await fetch(`${platform.baseUrl}${path}${query}`, {
    headers: { ...(key === '' ? {} : withKey(key)), ...headers },
    signal: closing.signal,
  });
  let text = '';
  let hasEnded = false;
  const read = async (): Promise<void> => {
    for await (const piece of response.body ?? []) text += Buffer.from(piece).toString();
  };
  void read()
    .catch(() => {})
    .finally(() => (hasEnded = true));
  const close = (): void => closing.abort();
  onTestFinished(close);
  return { status: response.status, text: () => text, hasEnded: () => hasEnded, close };
}

const idsIn = (text: string): string[] => [...text.matchAll(/^id: (.+)$/gm)].map(([, id = '']) => id);

test('a stream has the events that happen while it is open, and one that connects again misses none', async () => {
  const stream = await openStream(platform.adminKey);
  await eventually(stream.text, (text) => text.includes('event: open'));
  const first = await makeKey({ name: 'first' });
  await eventually(stream.text, (text) => text.includes(first.id));
  expect(stream.text()).toContain('"type":"api_key.created"');
  expect(stream.text()).not.toContain(first.key);
  stream.close();
  const last = idsIn(stream.text()).at(-1) ?? '';

  const second = await makeKey({ name: 'second' });
  const third = await makeKey({ name: 'third' });
  const again = await openStream(platform.adminKey, { headers: { 'last-event-id': last } });
  await eventually(again.text, (text) => text.includes(third.id));
  expect(again.text()).toContain(second.id);
  expect(again.text()).not.toContain(first.id);
  const { body } = await send('GET', `/events?after=${last}&limit=100`, withKey());
  const listed = (body['data'] as { id: string }[]).map(({ id }) => id);
  expect(idsIn(again.text())).toEqual(listed);
});

test('a stream of calls says when the request log has new records', async () => {
  const stream = await openStream(platform.adminKey, { query: '?calls=true' });
  await eventually(stream.text, (text) => text.includes('event: open'));
  await send('POST', '/chat/completions', withKey(), {
    model: '@simulator/sim-small',
    messages: [{ role: 'user', content: 'Hello' }],
  });
  await eventually(stream.text, (text) => /event: calls\ndata: \{"newest":"log_/.test(text));
});

test('any key is told which records changed that it may read, and no more', async () => {
  const { key } = await makeKey({ scopes: ['files.read'] });
  const open = (by: string) =>
    eventually(
      () => openStream(by, { path: '/session/changes' }),
      ({ status }) => status === 200,
    );
  const [narrow, wide] = [await open(key), await open(platform.adminKey)];
  await eventually(
    () => narrow.text() + wide.text(),
    (text) => text.split('event: open').length === 3,
  );
  const made = await makeKey({ name: 'not for everybody' });
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new Blob(['{}\n']), 'changes.jsonl');
  const uploaded = await fetch(`${platform.baseUrl}/files`, { method: 'POST', headers: withKey(), body: form });
  const { id } = (await uploaded.json()) as { id: string };
  await eventually(narrow.text, (text) => text.includes(id));
  await eventually(wide.text, (text) => text.includes(id) && text.includes(made.id));
  expect(narrow.text()).toContain(`event: change\ndata: {"noun":"file","id":"${id}"}\n\n`);
  expect(narrow.text()).not.toContain(made.id);
  expect((await send('GET', '/session/changes', {})).status).toBe(401);
});

test('the state of the installation comes again and again, to those who act for the organisation', async () => {
  const headers = { accept: 'text/event-stream' };
  // Streams of the tests before may still be closing.
  const stream = await eventually(
    () => openStream(platform.adminKey, { path: '/admin/system', headers }),
    ({ status }) => status === 200,
  );
  await eventually(stream.text, (text) => text.includes('data: {"object":"system"'));
  const { key } = await makeKey();
  await eventually(stream.text, (text) => text.split('data: {"object":"system"').length > 2);
  expect(await send('GET', '/admin/system', { ...withKey(key), ...headers })).toMatchObject({
    status: 403,
    body: { error: { code: 'organisation_key_required' } },
  });
});

test('another workspace sees nothing of it', async () => {
  const { body } = await send('POST', '/admin/workspaces', withKey(), { name: 'elsewhere' });
  const { key } = await makeKey({ name: 'elsewhere', workspace_id: body['id'] });
  const theirs = await openStream(key);
  const ours = await openStream(platform.adminKey);
  const made = await makeKey({ name: 'ours' });
  await eventually(ours.text, (text) => text.includes(made.id));
  expect(theirs.text()).not.toContain(made.id);
});

test('more streams than a workspace may have are refused, and a closed one makes room', async () => {
  const streams = [await openStream(platform.adminKey), await openStream(platform.adminKey)];
  await eventually(
    () => openStream(platform.adminKey),
    ({ status }) => status === 429,
  );
  streams[0]?.close();
  await eventually(
    () => openStream(platform.adminKey),
    ({ status }) => status === 200,
  );
});

test('a key has half of the streams of its workspace, and leaves the others to others', async () => {
  const { key } = await makeKey();
  const open = (by: string) =>
    eventually(
      () => openStream(by),
      ({ status }) => status === 200,
    );
  await open(key);
  await open(key);
  expect((await openStream(key)).status).toBe(429);
  await open(platform.adminKey);
});

describe('an open stream ends within a second', () => {
  type End = (made: { id: string; key: string; cookie: string }) => Promise<Answer>;
  const ends: [string, End][] = [
    ['when its key is revoked', ({ id }) => send('DELETE', `/api-keys/${id}`, withKey())],
    [
      'when its key loses the scope',
      ({ id }) => send('PUT', `/api-keys/${id}`, withKey(), { scopes: ['models.read'] }),
    ],
    ['when its session is ended', ({ cookie }) => send('DELETE', '/session', ofConsole(cookie))],
  ];
  test.each(ends)('%s, and shows nothing that happened after it', async (_when, end) => {
    const { id, key } = await makeKey({ scopes: ['audit.read'] });
    const cookie = await signIn(key);
    const stream = await openStream('', { headers: { cookie } });
    await eventually(stream.text, (text) => text.includes('event: open'));
    expect((await end({ id, key, cookie })).status).toBe(200);
    const later = await makeKey({ name: 'made after it' });
    await eventually(
      () => Promise.resolve(stream.hasEnded()),
      (hasEnded) => hasEnded,
    );
    expect(stream.text()).not.toContain(later.id);
  });
});

test('an id that is no event of the workspace is refused', async () => {
  const { status, body } = await send('GET', '/events/stream?after=evt_nothing', withKey());
  expect(status).toBe(400);
  expect(body).toMatchObject({ error: { param: 'after' } });
});

test('the console is served with a policy that lets it load and call nothing but this server', async () => {
  const origin = new URL(platform.baseUrl).origin;
  const page = await fetch(`${origin}/console/batches/batch_1`);
  expect(page.headers.get('content-security-policy')).toMatch(
    /default-src 'none'; script-src 'self'; style-src 'self'/,
  );
  expect(page.headers.get('cache-control')).toBe('no-cache');
  const script = /src="(\.\/\.\.\/\.\.\/console\/assets\/[^"]+)"/.exec(await page.text())?.[1] ?? '';
  const loaded = await fetch(new URL(script, page.url));
  expect(loaded.headers.get('cache-control')).toBe('max-age=31536000, immutable');
  expect((await fetch(`${origin}/console/assets/..%2Findex.html`)).status).toBe(404);
});

test('the address of the server leads a browser to the console, and tells a program the release', async () => {
  const origin = new URL(platform.baseUrl).origin;
  const browser = await fetch(origin, { headers: { accept: 'text/html,*/*;q=0.8' }, redirect: 'manual' });
  expect([browser.status, browser.headers.get('location')]).toEqual([302, 'console']);
  const program = await fetch(origin);
  expect(await program.json()).toMatchObject({ name: 'Sluice', version, console: '/console' });
});
