import { generateKeyPairSync } from 'node:crypto';
import { SignJWT } from 'jose';
import { expect, test } from 'vitest';
import { eventsOf, startTestSimulator, type Json } from '#test/test-simulator.ts';

let nowMs = 1_760_000_000_000;
const { url, post } = await startTestSimulator({ clock: { now: () => nowMs } });
const base = '/v1/projects/p/locations/eu-west1';
const contents = [{ role: 'user', parts: [{ text: 'Hello' }] }];
const gemini = (fields: Json = {}, verb = 'generateContent', headers: Record<string, string> = {}) =>
  post(`${base}/publishers/google/models/gemini-2.5-flash:${verb}`, { contents, ...fields }, headers);
const claude = (fields: Json = {}, verb = 'rawPredict', model = 'claude-sonnet-4-5@20250929') =>
  post(`${base}/publishers/anthropic/models/${model}:${verb}`, {
    anthropic_version: 'vertex-2023-10-16',
    max_tokens: 100,
    messages: [{ role: 'user', content: 'Hello' }],
    ...fields,
  });
const getFailureCode = async (response: Response) => ((await response.json()) as { error: Json }).error;

const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
const grant = 'urn:ietf:params:oauth:grant-type:jwt-bearer';

async function assertion(change: { issuer?: string; lifeSeconds?: number; alg?: 'HS256' } = {}): Promise<string> {
  const now = Math.floor(nowMs / 1_000);
  const token = new SignJWT({ scope: 'https://www.googleapis.com/auth/cloud-platform' })
    .setProtectedHeader({ alg: change.alg ?? 'RS256', typ: 'JWT' })
    .setIssuer(change.issuer ?? 'sim@p.iam.gserviceaccount.com')
    .setAudience(`${url}/token`)
    .setIssuedAt(now)
    .setExpirationTime(now + (change.lifeSeconds ?? 3_600));
  return token.sign(change.alg === 'HS256' ? new Uint8Array(32) : privateKey);
}

const exchange = async (form: Record<string, string>) => {
  const response = await fetch(`${url}/token`, { method: 'POST', body: new URLSearchParams(form) });
  return { status: response.status, body: (await response.json()) as Record<string, string | number> };
};

test('Gemini answers as on its own API, with what Vertex adds', async () => {
  const whole = (await (await gemini()).json()) as Json;
  expect(whole).toMatchObject({
    candidates: [{ finishReason: 'STOP' }],
    usageMetadata: { trafficType: 'ON_DEMAND' },
    createTime: expect.any(String),
  });
  const events = eventsOf(await (await gemini({ labels: { team: 'a' } }, 'streamGenerateContent?alt=sse')).text());
  expect(events.at(-1)?.data).toMatchObject({ candidates: [{ finishReason: 'STOP' }] });
  const noRole = await gemini({ contents: [{ parts: [{ text: 'x' }] }] });
  expect(await getFailureCode(noRole)).toMatchObject({
    status: 'INVALID_ARGUMENT',
    message: expect.stringContaining('role'),
  });
});

test('Claude answers in its own shapes, its errors too, but not Google’s', async () => {
  expect(await (await claude()).json()).toMatchObject({
    type: 'message',
    model: 'claude-sonnet-4-5@20250929',
    stop_reason: 'end_turn',
  });
  const events = eventsOf(await (await claude({ stream: true }, 'streamRawPredict')).text());
  expect([events[0]?.event, events.at(-1)?.event]).toEqual(['message_start', 'message_stop']);
  for (const fields of [{ model: 'x' }, { anthropic_version: undefined }, { stream: true }]) {
    const refused = await claude(fields);
    expect([refused.status, await refused.json()]).toMatchObject([
      400,
      { type: 'error', error: { type: 'invalid_request_error' } },
    ]);
  }
  const late = eventsOf(await (await claude({}, 'streamRawPredict', 'sim-fault-error-in-stream-late')).text());
  expect(late.at(-1)).toMatchObject({ event: 'error', data: { error: { type: 'overloaded_error' } } });
  expect(await getFailureCode(await claude({}, 'rawPredict', 'sim-fault-429'))).toMatchObject({
    code: 429,
    status: 'RESOURCE_EXHAUSTED',
  });
});

test('a JWT of a service account is exchanged for a token that expires when it says', async () => {
  const { status, body } = await exchange({
    grant_type: grant,
    assertion: await assertion({ issuer: 'sim-token-2s@p.iam.gserviceaccount.com' }),
  });
  expect([status, body['expires_in'], body['token_type']]).toEqual([200, 2, 'Bearer']);
  const authorization = `Bearer ${body['access_token']}`;
  expect((await gemini({}, 'generateContent', { authorization })).status).toBe(200);
  expect((await gemini({}, 'generateContent', { authorization: `${authorization}x` })).status).toBe(401);
  nowMs += 2_000;
  const expired = await gemini({}, 'generateContent', { authorization });
  expect([expired.status, (await getFailureCode(expired))['status']]).toEqual([401, 'UNAUTHENTICATED']);
});

test('a grant that is none is refused as OAuth says', async () => {
  const good = await assertion();
  const refused: [Record<string, string>, string][] = [
    [{ grant_type: 'client_credentials', assertion: good }, 'unsupported_grant_type'],
    [{ grant_type: grant }, 'invalid_grant'],
    [{ grant_type: grant, assertion: 'a.b.c' }, 'invalid_grant'],
    [{ grant_type: grant, assertion: `${good.split('.').slice(0, 2).join('.')}.AAAA` }, 'invalid_grant'],
    [{ grant_type: grant, assertion: await assertion({ lifeSeconds: 7_200 }) }, 'invalid_grant'],
    [{ grant_type: grant, assertion: await assertion({ alg: 'HS256' }) }, 'invalid_grant'],
    [{ grant_type: grant, assertion: await assertion({ issuer: 'unknown' }) }, 'invalid_grant'],
  ];
  for (const [form, error] of refused) {
    expect(await exchange(form)).toMatchObject({ status: 400, body: { error, error_description: expect.any(String) } });
  }
  const flaky = { grant_type: grant, assertion: await assertion({ issuer: 'sim-fault-503-then-ok-1@p.iam' }) };
  expect([(await exchange(flaky)).status, (await exchange(flaky)).status]).toEqual([503, 200]);
});
