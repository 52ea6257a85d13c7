import { inlineModels } from '#apps/platform/models.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startProviderProxy, type ProviderProxy } from './provider-proxy.ts';

export type Json = Record<string, unknown>;
export type Answer = { status: number; body: Json; headers: Headers };

export type TuningRig = {
  platform: TestPlatform;
  proxy: ProviderProxy;
  /** Lets the training at the provider go on. */
  train: (ms: number) => void;
  call: (method: string, path: string, body?: unknown, headers?: Record<string, string>) => Promise<Answer>;
  upload: (text: string, purpose?: string) => Promise<string>;
  /** A job of ten good examples at the provider; resolves with its id. */
  begin: (fields?: Json, headers?: Record<string, string>) => Promise<string>;
  job: (id: string) => Promise<Json>;
  /** Waits for a status. */
  reaches: (id: string, status: string) => Promise<Json>;
  /** Every event, newest first, page by page. */
  events: (id: string) => Promise<Json[]>;
  checkpoints: (id: string) => Promise<Json[]>;
  /** What the provider itself says. */
  atProvider: (path: string) => Promise<Json>;
  difference: () => Promise<unknown>;
  stop: () => Promise<void>;
};

const example = {
  messages: [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: 'Hello there' },
  ],
};
/** A training file of so many good examples. */
export const examples = (count: number): string => `${JSON.stringify(example)}\n`.repeat(count);

/** A platform without a worker in front of a provider (`tuner`) that trains by a clock which only the test moves. */
export async function startTuningRig(environment: Record<string, string> = {}): Promise<TuningRig> {
  let nowMs = Date.now();
  const platform = await startPlatform({
    worker: false,
    simulator: { clock: { now: () => nowMs }, trainingMs: 10_000 },
    environment: {
      SLUICE_EGRESS_ALLOW: '127.0.0.0/8',
      SLUICE_FINE_TUNING_POLL_MIN: '10ms',
      SLUICE_FINE_TUNING_POLL_MAX: '100ms',
      ...environment,
    },
  });
  const proxy = await startProviderProxy(platform.simulatorUrl);
  const authorization = `Bearer ${platform.adminKey}`;

  const call: TuningRig['call'] = async (method, path, body, headers = {}) => {
    const json =
      body === undefined ? {} : { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } };
    const sent = { authorization, ...json.headers, ...headers };
    const response = await fetch(`${platform.baseUrl}${path}`, { method, ...json, headers: sent });
    return { status: response.status, body: (await response.json()) as Json, headers: response.headers };
  };
  const upload: TuningRig['upload'] = async (text, purpose = 'fine-tune') => {
    const form = new FormData();
    form.set('purpose', purpose);
    form.set('file', new File([text], 'train.jsonl'));
    const response = await fetch(`${platform.baseUrl}/files`, {
      method: 'POST',
      headers: { authorization },
      body: form,
    });
    return ((await response.json()) as { id: string }).id;
  };
  const job: TuningRig['job'] = async (id) => (await call('GET', `/fine_tuning/jobs/${id}`)).body;
  const listed = async (id: string, list: string): Promise<Json[]> => {
    const all: Json[] = [];
    for (let after = ''; ; after = `&after=${String(all.at(-1)?.['id'])}`) {
      const { body } = await call('GET', `/fine_tuning/jobs/${id}/${list}?limit=7${after}`);
      all.push(...(body['data'] as Json[]));
      if (body['has_more'] !== true) return all;
    }
  };
  await call('POST', '/virtual-keys', {
    name: 'tuner',
    slug: 'tuner',
    provider: 'openai',
    key: 'sk-provider-0123456789',
    custom_host: proxy.url,
  });
  return {
    platform,
    proxy,
    train: (ms) => {
      nowMs += ms;
    },
    call,
    upload,
    job,
    async begin(fields = {}, headers = { 'x-gateway-virtual-key': 'tuner' }) {
      const training = 'training_file' in fields ? {} : { training_file: await upload(examples(10)) };
      const created = await call('POST', '/fine_tuning/jobs', { model: 'sim-small', ...training, ...fields }, headers);
      if (created.status !== 200) throw new Error(`no job: ${JSON.stringify(created.body)}`);
      return String(created.body['id']);
    },
    reaches: (id, status) =>
      eventually(
        () => job(id),
        (read) => read['status'] === status,
      ),
    events: (id) => listed(id, 'events'),
    checkpoints: (id) => listed(id, 'checkpoints'),
    async atProvider(path) {
      const headers = { authorization: 'Bearer any' };
      return (await (await fetch(`${platform.simulatorUrl}${path}`, { headers })).json()) as Json;
    },
    async difference() {
      return (await checkInlineModels(platform.database.pool, inlineModels)).difference;
    },
    async stop() {
      await platform.stop();
      await proxy.stop();
    },
  };
}
