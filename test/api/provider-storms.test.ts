import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { UpstreamReply } from '#test/upstream.ts';
import { eventually } from '#test/eventually.ts';
import { chatLine, createBatch, ended, resultsOf, toJsonl, uploadInput } from './batch-kit.ts';
import { startFaultRig, type FaultRig } from './fault-rig.ts';
import { canary, postJson } from './scripted-provider.ts';
import { sdks, type Client, type Sdk } from './sdk.ts';
import { wireKeys } from './wire-keys.ts';

// What a provider says about when to come back, in every form that there is, through every wire format.

let rig: FaultRig;
let client: Client;
const sdk = sdks[0] as Sdk;
beforeAll(async () => {
  // A batch may begin with so many calls before the first is answered that all its lines are asked for at once.
  rig = await startFaultRig({ SLUICE_CALLS_MAX: '256' });
  client = new sdk.OpenAI({ apiKey: rig.platform.adminKey, baseURL: rig.platform.baseUrl, maxRetries: 0 });
});
afterAll(() => rig.stop());

/** How the front says it, and how long that is from now; null: it says nothing that could be understood. */
type AskedWait = { headers?: Record<string, string>; details?: object[]; ms: number | null };

const info = (retryDelay: string) => [{ '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay }];
// Beyond what is waited when nothing is said: a second, without jitter.
const ms = 1_100;
/** A moment in whole seconds. */
const soon = (): Date => new Date(Math.ceil((Date.now() + ms) / 1_000) * 1_000);
const weekdays = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const waitUntil = (at: Date, text: string): AskedWait => ({
  headers: { 'retry-after': text },
  ms: at.getTime() - Date.now(),
});

const askedWaits: Record<string, () => AskedWait> = {
  'in seconds': () => ({ headers: { 'retry-after': '1' }, ms: 1_000 }),
  'in parts of a second': () => ({ headers: { 'retry-after': '1.1' }, ms }),
  'as a date': () => {
    const at = soon();
    return waitUntil(at, at.toUTCString());
  },
  'as a date of RFC 850': () => {
    const at = soon();
    const [, day, month, year = '', time] = at.toUTCString().split(' ');
    return waitUntil(at, `${weekdays[at.getUTCDay()]}, ${day}-${month}-${year.slice(2)} ${time} GMT`);
  },
  'as a date of asctime': () => {
    const at = soon();
    const [, day, month, year, time] = at.toUTCString().split(' ');
    return waitUntil(at, `${weekdays[at.getUTCDay()]?.slice(0, 3)} ${month} ${day} ${time} ${year}`);
  },
  'in milliseconds': () => ({ headers: { 'retry-after-ms': '1100' }, ms }),
  'in milliseconds, beside rounded seconds': () => ({ headers: { 'retry-after-ms': '1100', 'retry-after': '1' }, ms }),
  'in milliseconds of Azure': () => ({ headers: { 'x-ms-retry-after-ms': '1100' }, ms }),
  'in the body, as Google does': () => ({ details: info('1.1s'), ms }),
  'in the body, beside headers that say nothing': () => ({
    headers: { 'retry-after': '-5', 'retry-after-ms': 'soon' },
    details: info('1.1s'),
    ms,
  }),
  'by nothing': () => ({ ms: null }),
  'as less than nothing': () => ({ headers: { 'retry-after': '-5', 'retry-after-ms': '-1' }, ms: null }),
  'as a date of the past': () => ({ headers: { 'retry-after': new Date(0).toUTCString() }, ms: null }),
};
const absurd: Record<string, AskedWait> = {
  'a year': { headers: { 'retry-after': '31536000' }, ms: 31_536_000_000 },
  'more than a timer takes': { headers: { 'retry-after-ms': '2147483648' }, ms: 2_147_483_648 },
  'more than the age of the world': { headers: { 'retry-after': '99999999999999999999' }, ms: 1e15 },
  'the year 9999': { headers: { 'retry-after': 'Fri, 31 Dec 9999 23:59:59 GMT' }, ms: 1e14 },
};

function refuse(reply: UpstreamReply, { headers = {}, details }: AskedWait): void {
  const error = { code: 429, status: 'RESOURCE_EXHAUSTED', message: 'Slow down.', ...(details ? { details } : {}) };
  reply.json(429, { error }, headers);
}

const isGoogle = (provider: string): boolean => provider === 'gemini' || provider === 'vertex';
const retry = { retry: { attempts: 1, use_retry_after_headers: true, jitter: false } };
let models = 0;
/** A model that no other test has brought into trouble. */
const freshModel = (): string => `text-${(models += 1)}`;
const modelIn = (text: string): string => /text-\d+/.exec(text)?.[0] ?? '';

describe.concurrent('a live call', () => {
  // Side by side, each on a model of its own: they wait.
  const answers = new Map<string, (reply: UpstreamReply, text: string) => boolean>();
  beforeAll(() => rig.intercept((reply, text) => answers.get(modelIn(text))?.(reply, text) === true));

  test.each(Object.entries(askedWaits))(
    'asked to wait %s, it comes back not sooner, and then has its answer',
    async (how, make) => {
      const formats = wireKeys.filter(({ provider }) => !how.includes('body') || isGoogle(provider));
      const model = freshModel();
      const waits = new Map<string, { refusedAt: number; ms: number }>();
      answers.set(model, (reply, text) => {
        const provider = /provider-(\w+)/.exec(text)?.[1] ?? '';
        if (waits.has(provider)) return false;
        const said = make();
        waits.set(provider, { refusedAt: performance.now(), ms: said.ms ?? 0 });
        refuse(reply, said);
        return true;
      });
      await Promise.all(
        formats.map(async ({ provider, prefix }) => {
          const asked = await rig.ask(`@front-${provider}/${prefix}${model}`, {
            config: retry,
            content: `provider-${provider}`,
          });
          expect([provider, asked.status]).toEqual([provider, 200]);
          expect(asked.headers.get('x-gateway-retry-attempt-count')).toBe('1');
          const [first, second, ...more] = rig.arrivals.filter(
            ({ text }) => modelIn(text) === model && text.includes(`provider-${provider}`),
          );
          const wait = waits.get(provider);
          expect([first, wait, more]).toEqual([expect.anything(), expect.anything(), []]);
          expect((second?.at ?? 0) - (wait?.refusedAt ?? 0)).toBeGreaterThanOrEqual(wait?.ms ?? Number.NaN);
        }),
      );
    },
  );
});

test.each(Object.entries(absurd))(
  'asked to wait for %s, a call is answered at once, as the provider said it, and SDKs do not sleep through it',
  async (_what, said) => {
    const model = freshModel();
    rig.intercept((reply) => {
      refuse(reply, said);
      return true;
    });
    for (const { provider, prefix } of wireKeys) {
      for (const config of [retry, undefined]) {
        const asked = await rig.ask(`@front-${provider}/${prefix}${model}`, config === undefined ? {} : { config });
        expect([provider, asked.status]).toEqual([provider, 429]);
        const own = Object.keys(said.headers ?? {})[0] ?? '';
        // With a config it was the provider's answer; the call after it is not made, because of what it said.
        const isSaid = asked.headers.get(own) === said.headers?.[own];
        expect(config === retry ? isSaid : Number(asked.headers.get('retry-after')) > 60).toBe(true);
        expect(asked.headers.get('x-should-retry')).toBe('false');
        expect(asked.body.error).toEqual({
          message: expect.stringMatching(/./),
          type: expect.any(String),
          param: null,
          code: expect.toSatisfy((code: unknown) => code === null || typeof code === 'string'),
        });
      }
    }
    // The second call of each was not even made.
    expect(rig.arrivals).toHaveLength(wireKeys.length);
  },
);

test.each([['-5'], ['1e9'], ['soon'], ['Infinity']])('no client is asked to come back after %j', async (text) => {
  const model = freshModel();
  rig.intercept((reply) => {
    refuse(reply, { headers: { 'retry-after': text, 'retry-after-ms': text }, ms: null });
    return true;
  });
  for (const { provider, prefix } of wireKeys) {
    const asked = await rig.ask(`@front-${provider}/${prefix}${model}`);
    expect(asked.status).toBe(429);
    expect([asked.headers.get('retry-after'), asked.headers.get('retry-after-ms')]).toEqual([null, null]);
  }
});

test('a storm on one model of a credential is no matter of its others', async () => {
  const [stormy, calm] = [freshModel(), freshModel()];
  rig.intercept((reply, text) => {
    if (!text.includes(stormy)) return false;
    refuse(reply, { headers: { 'retry-after-ms': '40000' }, ms: 40_000 });
    return true;
  });
  for (const { provider, prefix } of wireKeys) {
    const call = (model: string) => rig.ask(`@front-${provider}/${prefix}${model}`);
    expect((await call(stormy)).status).toBe(429);
    const paused = await call(stormy);
    expect(paused.body.error).toMatchObject({ code: 'provider_rate_limited', type: 'rate_limit_error' });
    expect(paused.status).toBe(429);
    expect(Number(paused.headers.get('retry-after'))).toBeGreaterThan(20);
    expect(Number(paused.headers.get('retry-after'))).toBeLessThanOrEqual(40);
    expect((await call(calm)).status).toBe(200);
  }
  const texts = rig.arrivals.map(({ text }) => text);
  expect(texts.filter((text) => text.includes(stormy))).toHaveLength(wireKeys.length);
});

async function runLines(models: string[], options: object) {
  const lines = models.map((model, index) => ({
    custom_id: `line-${index}`,
    method: 'POST',
    url: '/v1/chat/completions',
    body: { model, messages: [{ role: 'user', content: `line-${index}.` }] },
  }));
  const created = await postJson(rig.platform, '/batches', {
    input_file_id: await uploadInput(sdk, client, toJsonl(lines)),
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    ...options,
  });
  const batch = (await created.json()) as { id: string };
  const over = await ended(client, batch);
  return { batch: over, ...(await resultsOf(client, over)) };
}

describe('in a batch', () => {
  const perModel = 3;
  // As text: an object with a member `then` is taken for a promise by linters.
  const conditions = wireKeys.map(
    ({ provider }) =>
      JSON.parse(`{"query":{"params.model":{"$regex":"-${provider}$"}},"then":"${provider}"}`) as object,
  );

  test.each([
    ['by the key of its lines', () => ({}), '@front-'],
    [
      'by a config',
      () => ({
        gateway_options: {
          config: {
            ...retry,
            strategy: { mode: 'conditional', default: 'openai', conditions },
            targets: wireKeys.map(({ provider }) => ({ name: provider, virtual_key: `front-${provider}` })),
          },
        },
      }),
      '',
    ],
  ] as const)(
    'lines wait as long as they were asked, every model by itself, and end well (%s)',
    async (_how, options, slug) => {
      const name = `${freshModel()}-`;
      const models = wireKeys.flatMap(({ provider, prefix }) =>
        Array.from(
          { length: perModel },
          () => `${slug === '' ? '' : `${slug}${provider}/`}${prefix}${name}${provider}`,
        ),
      );
      const held: { reply: UpstreamReply; text: string }[] = [];
      const until = new Map<string, number>();
      const early: string[] = [];
      const modelOfFormat = (text: string): string => /text-\d+-(\w+)/.exec(text)?.[0] ?? '';
      rig.intercept((reply, text) => {
        const waitsUntil = until.get(modelOfFormat(text));
        if (waitsUntil !== undefined) {
          if (performance.now() < waitsUntil) early.push(text);
          return false;
        }
        // All are refused at one moment, so that none is on its way when another has to wait.
        held.push({ reply, text });
        if (held.length < models.length) return true;
        for (const [index, one] of held.entries()) {
          const ms = 500 + 100 * (index % perModel);
          const model = modelOfFormat(one.text);
          until.set(model, Math.max(until.get(model) ?? 0, performance.now() + ms));
          refuse(one.reply, { headers: { 'retry-after-ms': String(ms) }, ms });
        }
        return true;
      });
      const { batch, output, errors } = await runLines(models, options());
      expect({ status: batch.status, counts: batch.request_counts, errors }).toMatchObject({
        status: 'completed',
        counts: { total: models.length, completed: models.length, failed: 0 },
        errors: [],
      });
      expect(output.map(({ response }) => response?.status_code)).toEqual(models.map(() => 200));
      expect(early).toEqual([]);
      expect(rig.arrivals).toHaveLength(2 * models.length);
    },
  );

  test('lines that are asked to wait beyond their batch wait, and are called as soon as their credential changes', async () => {
    const model = freshModel();
    const isStored = new Set<string>();
    rig.intercept((reply, text) => {
      if (wireKeys.some(({ provider }) => text.includes(`-${provider}.`) && isStored.has(provider))) return false;
      refuse(reply, { headers: { 'retry-after': '99999999999999999999' }, ms: 1e15 });
      return true;
    });
    const lines = wireKeys.map(({ provider, prefix }) =>
      chatLine(`${model}-${provider}`, { model: `@front-${provider}/${prefix}${model}` }),
    );
    const batch = await createBatch(sdk, client, lines);
    const waiting = await eventually(
      () => client.batches.retrieve(batch.id),
      (found) => waitsOf(found).length === wireKeys.length,
      { timeoutMs: 15_000 },
    );
    expect(waiting).toMatchObject({ status: 'in_progress', request_counts: { failed: 0 } });
    for (const wait of waitsOf(waiting)) expect(wait).toMatchObject({ reason: 'rate_limited', lines: 1 });
    expect(rig.arrivals).toHaveLength(wireKeys.length);
    for (const { provider, key } of wireKeys) {
      isStored.add(provider);
      const response = await fetch(`${rig.platform.baseUrl}/virtual-keys/front-${provider}`, {
        method: 'PUT',
        headers: { authorization: `Bearer ${rig.platform.adminKey}`, 'content-type': 'application/json' },
        body: JSON.stringify(key(rig.front.url.origin, canary)),
      });
      expect([provider, response.status]).toEqual([provider, 200]);
    }
    expect(await ended(client, batch)).toMatchObject({
      status: 'completed',
      request_counts: { completed: wireKeys.length, failed: 0 },
    });
    expect(rig.arrivals).toHaveLength(2 * wireKeys.length);
  });
});

const waitsOf = (batch: object): Record<string, unknown>[] => (batch as { waits: Record<string, unknown>[] }).waits;
