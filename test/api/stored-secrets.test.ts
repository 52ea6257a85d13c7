import { afterAll, beforeAll, expect, test } from 'vitest';
import { sql } from 'kysely';
import { startUpstream, type Upstream } from '#test/upstream.ts';
import { startFaultRig, type FaultRig } from './fault-rig.ts';
import { canary, postJson } from './scripted-provider.ts';
import { serviceAccount, wireKeys } from './wire-keys.ts';

// A stored credential goes to the origin it was stored for, and nowhere else: not by a redirect, not by what a caller or
// a config says, not by a setting that becomes part of an address, and not into an answer or a record.

let rig: FaultRig;
let recorder: Upstream;
beforeAll(async () => {
  rig = await startFaultRig();
  recorder = await startUpstream((reply) => reply.json(200, { choices: [] }));
});
afterAll(async () => {
  await rig.stop();
  await recorder.stop();
});

const bare = (provider: string): string => `${wireKeys.find((one) => one.provider === provider)?.prefix}sim-small`;
const expectUnmet = (): void => {
  expect(recorder.connections().accepted).toBe(0);
  expect(recorder.received()).toBe('');
};

test.each([301, 302, 303, 307, 308])('a redirect by %s is never followed', async (status) => {
  rig.intercept((reply) => {
    reply.respond(status, '', { location: recorder.url.href });
    return true;
  });
  for (const { provider } of wireKeys) {
    for (const stream of [false, true]) {
      const { body, ...answer } = await rig.ask(`@front-${provider}/${bare(provider)}`, { stream });
      expect([provider, answer.status]).toEqual([provider, 502]);
      expect(body.error).toMatchObject({ code: 'upstream_redirect', type: 'server_error', param: null });
    }
  }
  // Nor to another path of the same origin.
  expect(rig.arrivals).toHaveLength(2 * wireKeys.length);
  expectUnmet();
});

test('a stored key with another host, by header, target or nested target, is refused', async () => {
  for (const { provider } of wireKeys) {
    const slug = `front-${provider}`;
    const host = recorder.url.href;
    const target = { virtual_key: slug, custom_host: host };
    const model = bare(provider);
    const asked = await Promise.all([
      rig.ask(`@${slug}/${model}`, { headers: { 'x-gateway-custom-host': host } }),
      rig.ask(model, { headers: { 'x-gateway-virtual-key': slug, 'x-gateway-custom-host': host } }),
      rig.ask(`@${slug}/${model}`, { config: { custom_host: host } }),
      rig.ask(model, { config: target }),
      rig.ask(model, { config: { strategy: { mode: 'fallback' }, targets: [target] } }),
      rig.ask(model, {
        config: { custom_host: host, strategy: { mode: 'fallback' }, targets: [{ virtual_key: slug }] },
      }),
      rig.ask(model, {
        config: {
          strategy: { mode: 'loadbalance' },
          targets: [{ strategy: { mode: 'fallback' }, targets: [{ ...target, weight: 1 }] }],
        },
      }),
    ]);
    expect([provider, ...asked.map(({ status }) => status)]).toEqual([provider, ...asked.map(() => 400)]);
    for (const { text } of asked) expect(text).not.toContain(canary);
  }
  expectUnmet();
});

const characters = ['#', '/', '?', '@', '\\', '.', '..', '%2f', ':', ' ', '\t', '\n', '\0', '%00', '。', '％2f'];
const settings = [
  ['azure', 'azure_resource_name', {}, (end: string) => `x${end}`],
  [
    'bedrock',
    'aws_region',
    { aws_access_key_id: 'AKIAOTHER', aws_secret_access_key: canary },
    (end: string) => `us-east-1${end}`,
  ],
  ['vertex', 'vertex_region', { vertex_project_id: 'p' }, (end: string) => `us-central1${end}`],
  ['vertex', 'vertex_project_id', { vertex_region: 'us-central1' }, (end: string) => `project${end}`],
] as const;

test.each(settings)('%s: %s holds nothing that leads elsewhere', async (provider, name, more, make) => {
  let refused = 0;
  for (const character of characters) {
    const value = make(`${character}127.0.0.1:${recorder.port}${character}`);
    const slug = `hostile-${provider}-${(refused += 1)}-${name.replaceAll('_', '-')}`;
    const key = { name: slug, slug, provider, key: canary, ...more, [name]: value };
    const stored = await postJson(rig.platform, '/virtual-keys', key);
    const text = await stored.text();
    expect(text).not.toContain(canary);
    // Refused when it is stored, or when it is used.
    const used = stored.status === 200 ? await rig.ask(`@${slug}/${provider === 'vertex' ? 'google/m' : 'm'}`) : null;
    expect([value, used?.status ?? stored.status]).toEqual([value, 400]);
    expect(used?.body ?? (JSON.parse(text) as object)).toMatchObject({ error: { code: 'invalid_value', param: name } });
    const config = { strategy: { mode: 'fallback' }, targets: [{ provider, api_key: canary, ...more, [name]: value }] };
    const asked = await rig.ask(provider === 'vertex' ? 'google/m' : 'm', {
      // A header holds no letter beyond ASCII.
      headers: {
        'x-gateway-config': JSON.stringify(config).replaceAll(
          /[^ -~]/g,
          (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
        ),
      },
    });
    expect([value, asked.status]).toEqual([value, 400]);
  }
  expect(refused).toBe(characters.length);
  expectUnmet();
});

test('a service account gets its tokens from Google or from its own target, whatever its file says', async () => {
  const { origin } = rig.front.url;
  const { host, href } = recorder.url;
  const uris = [
    href,
    `${origin}@${host}/token`,
    `http://user:password@${rig.front.url.host}/token`,
    `${origin}.${host}/token`,
    `https://oauth2.googleapis.com@${host}/token`,
    `https://oauth2.googleapis.com#@${host}/token`,
    `https://oauth2.googleapis.com\\@${host}/token`,
    `//${host}/token`,
  ];
  rig.intercept(null);
  for (const [index, uri] of uris.entries()) {
    const slug = `account-${index}`;
    const key = {
      name: slug,
      slug,
      provider: 'vertex',
      custom_host: `${origin}/v1`,
      vertex_region: 'europe-west4',
      vertex_service_account_json: serviceAccount(uri),
    };
    const stored = await postJson(rig.platform, '/virtual-keys', key);
    if (stored.status !== 200) continue;
    const { status, body, text } = await rig.ask(`@${slug}/google/sim-small`);
    expect([uri, status]).toEqual([uri, 400]);
    expect(body.error).toMatchObject({ code: 'invalid_credential', param: 'vertex_service_account_json' });
    expect(text).not.toContain('PRIVATE KEY');
  }
  expect(rig.arrivals).toEqual([]);
  expectUnmet();
});

test('a key that a provider repeats, in a body, a header, a stream or a name, is in no answer and no record', async () => {
  const headers = {
    'x-request-id': `req-${canary}`,
    'request-id': canary,
    'x-ratelimit-limit-requests': canary,
    'openai-version': canary,
    'retry-after': '0',
    [`x-ratelimit-${canary}`]: '1',
  };
  const error = { message: `no ${canary}`, type: canary, param: canary, code: canary, status: canary };
  const answers = [
    () => ({ status: 401, body: JSON.stringify({ error, message: `no ${canary}` }) }),
    () => ({ status: 500, body: `<html>${canary}</html>` }),
    () => ({ status: 200, body: `<html>${canary}</html>` }),
    () => ({ status: 200, body: JSON.stringify({ error, message: canary }) }),
    () => ({ status: 429, body: canary }),
  ];
  for (const make of answers) {
    rig.intercept((reply) => {
      const { status, body } = make();
      reply.respond(status, body, { 'content-type': 'application/json', ...headers });
      return true;
    });
    for (const { provider } of wireKeys) {
      if (provider === 'vertex') continue; // its key never leaves; it is a token that does
      for (const stream of [false, true]) {
        const { text, headers: shown } = await rig.ask(`@front-${provider}/${bare(provider)}`, { stream });
        expect([provider, text.includes(canary)]).toEqual([provider, false]);
        expect([provider, JSON.stringify([...shown])]).toEqual([provider, expect.not.stringContaining(canary)]);
      }
    }
  }
  await rig.idle();
  await rig.platform.api.platform.requestLog.flush();
  for (const table of ['request_log', 'event', 'resource', 'provider_circuit']) {
    const { rows } = await sql<{ text: string }>`
      select row_to_json(t)::text as text from ${sql.table(table)} t`.execute(rig.platform.database.db);
    expect([table, rows.filter(({ text }) => text.includes(canary))]).toEqual([table, []]);
  }
});
