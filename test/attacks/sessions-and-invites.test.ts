import { afterAll, beforeAll } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { asker, tokenOf, type Ask } from '../api/people-kit.ts';
import { attack } from './attack.ts';

// A key, a link or a cookie was stolen, and its owner has revoked it.

/** Shorter than the 15 seconds after which a stream checks its key anyway. */
const beforeHeartbeat = { timeoutMs: 10_000 };

let platform: TestPlatform;
let ask: Ask;
beforeAll(async () => {
  platform = await startPlatform({ worker: false, environment: { SLUICE_PUBLIC_URL: 'https://sluice.example' } });
  ask = asker(platform);
});
afterAll(() => platform?.stop());

async function makeKey(fields: object = {}): Promise<{ id: string; key: string }> {
  const type = 'organisation-service';
  const { status, body } = await ask('POST', '/api-keys', { name: 'stolen', type, ...fields });
  if (status !== 200) throw new Error(JSON.stringify(body));
  return body as object as { id: string; key: string };
}

async function signIn(key: string): Promise<{ headers: Headers; cookie: string }> {
  const { headers } = await fetch(`${platform.baseUrl}/session`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}` },
  });
  return { headers, cookie: headers.get('set-cookie')?.split(';')[0] ?? '' };
}

const withCookie = async (cookie: string, method = 'GET', path = '/api-keys'): Promise<number> =>
  (await fetch(`${platform.baseUrl}${path}`, { method, headers: { cookie, 'x-sluice-console': '1' } })).status;

attack('a stolen organisation key invites an administrator before it is rotated or limited', async () => {
  const leaks: string[] = [];
  const ends: Record<string, (id: string) => Promise<unknown>> = {
    'was rotated without transition': (id) => ask('POST', `/api-keys/${id}/rotate`, { key_transition_period_ms: 0 }),
    'lost its rights': (id) => ask('PUT', `/api-keys/${id}`, { scopes: ['chat.write'] }),
    'was revoked': (id) => ask('DELETE', `/api-keys/${id}`),
    'is as it was': () => Promise.resolve(),
  };
  for (const [what, end] of Object.entries(ends)) {
    const { id, key } = await makeKey();
    const email = `${what.replaceAll(' ', '-')}@example.org`;
    const { body } = await ask('POST', '/admin/users/invites', { email, role: 'admin' }, key);
    await end(id);
    const accepted = await ask('POST', '/admin/users/invites/accept', { token: tokenOf(body['invite_link']) }, null);
    const wasPossible = what === 'is as it was';
    if ((accepted.status === 200) !== wasPossible)
      leaks.push(`the key ${what}, and its invite gave ${accepted.status}`);
  }
  return leaks;
});

attack('a copied cookie is used after its owner signed out, ended the session, or had the key revoked', async () => {
  const leaks: string[] = [];
  const ends: Record<string, (made: { id: string; key: string; cookie: string }) => Promise<unknown>> = {
    'signed out': ({ cookie }) => withCookie(cookie, 'DELETE', '/session'),
    'signed out everywhere': async ({ key }) =>
      withCookie((await signIn(key)).cookie, 'DELETE', '/session?everywhere=true'),
    'had the session revoked': async ({ id }) => {
      const { body } = await ask('GET', `/sessions?principal_id=${id}`);
      await ask('DELETE', `/sessions/${(body.data[0] as object as { id: string }).id}`);
    },
    'had the key revoked': ({ id }) => ask('DELETE', `/api-keys/${id}`),
  };
  for (const [what, end] of Object.entries(ends)) {
    const made = await makeKey();
    const { cookie } = await signIn(made.key);
    if ((await withCookie(cookie)) !== 200) leaks.push('the cookie never worked');
    await end({ ...made, cookie });
    await eventually(
      () => withCookie(cookie),
      (status) => status === 401,
      beforeHeartbeat,
    ).catch(() => leaks.push(`the owner ${what}, and the copy still works`));
  }
  return leaks;
});

attack('a sibling domain plants a cookie, to lock a person out or make them work in its session', async () => {
  const leaks: string[] = [];
  const { cookie, headers } = await signIn((await makeKey()).key);
  if (!cookie.startsWith('__Host-'))
    leaks.push(`the cookie is ${cookie.split('=')[0]}, which a sibling domain can set`);
  if (headers.get('cache-control') !== 'no-store') leaks.push('the answer with the cookie may be stored');
  const planted = cookie.replace('__Host-', '');
  if ((await withCookie(planted)) !== 401) leaks.push('a cookie without the prefix is accepted');
  for (const both of [`${planted}; ${cookie}`, `__Host-sluice_session=x; ${cookie}`, `${cookie}; sluice_session=x`]) {
    if ((await withCookie(both)) !== 200) leaks.push('a planted cookie locks the owner out');
  }
  return leaks;
});

attack('a client keeps following events after its key has lost the right or was revoked', async () => {
  const leaks: string[] = [];
  const ends: Record<string, (id: string) => Promise<unknown>> = {
    'lost audit.read': (id) => ask('PUT', `/api-keys/${id}`, { scopes: ['models.read'] }),
    'was revoked': (id) => ask('DELETE', `/api-keys/${id}`),
  };
  for (const [what, end] of Object.entries(ends)) {
    const { id, key } = await makeKey({ scopes: ['audit.read'] });
    const leaving = new AbortController();
    const { body } = await fetch(`${platform.baseUrl}/events/stream`, {
      headers: { authorization: `Bearer ${key}` },
      signal: leaving.signal,
    });
    let text = '';
    let hasEnded = false;
    const reading = (async () => {
      for await (const piece of body ?? []) text += Buffer.from(piece).toString();
      hasEnded = true;
    })().catch(() => {});
    const before = await makeKey();
    await eventually(
      () => text,
      (seen) => seen.includes(before.id),
    );
    await end(id);
    const later = await makeKey();
    await eventually(() => hasEnded, Boolean, beforeHeartbeat).catch(() =>
      leaks.push(`the key ${what}, and its stream stays open`),
    );
    if (text.includes(later.id)) leaks.push(`the key ${what}, and its stream showed what happened later`);
    leaving.abort();
    await reading;
  }
  return leaks;
});
