import { randomBytes } from 'node:crypto';
import { eventually } from '#test/eventually.ts';
import type { TestPlatform } from '#test/platform.ts';
import { chatLine, toJsonl } from './batch-kit.ts';
import { tokenOf } from './people-kit.ts';

export type Answer = { status: number; text: string; code: string | undefined };

export type RecordMaker = {
  /** Ids or slugs of what was made, by the path up to the parameter. */
  records: Map<string, string>;
  /** Makes the records that a path names, unless they are there. */
  makeRecordsOf: (path: string) => Promise<void>;
  make: (path: string, body: object) => Promise<Record<string, string>>;
  makeUser: (workspaces: { id: string; role: string }[]) => Promise<string | undefined>;
};

/** Sends a request to a path of the API. */
export async function send(
  { baseUrl }: Pick<TestPlatform, 'baseUrl'>,
  method: string,
  path: string,
  key: string | null,
  body?: object,
): Promise<Answer> {
  const form = body instanceof FormData;
  const response = await fetch(new URL(path, baseUrl), {
    method,
    headers: {
      ...(key === null ? {} : { 'x-gateway-api-key': key }),
      ...(form || body === undefined ? {} : { 'content-type': 'application/json' }),
    },
    ...(body === undefined ? {} : { body: form ? body : JSON.stringify(body) }),
  });
  const text = await asText(response);
  return { status: response.status, text, code: /"(?:code|reason)":\s*"(\w+)"/.exec(text)?.[1] };
}

/** The body of an answer; of a stream of events, which does not end, what comes first. */
async function asText(response: Response): Promise<string> {
  if (response.headers.get('content-type')?.startsWith('text/event-stream') !== true) return await response.text();
  const reader = response.body?.getReader();
  const first = await reader?.read();
  await reader?.cancel();
  return new TextDecoder().decode(first?.value);
}

export /** The path up to each of its parameters, with `:` in the place of those before. */
function recordPaths(path: string): string[] {
  const pieces = path.split(/\/\{\w+\}/);
  return pieces.slice(0, -1).map((_piece, index) => pieces.slice(0, index + 1).join('/:'));
}

/** Makes one record of each kind that paths name, in the workspace (id or slug) of the key. `name` is part of every name. */
export function createRecordMaker(
  platform: TestPlatform,
  { key, workspaceId, name: canary }: { key: string; workspaceId: string; name: string },
): RecordMaker {
  const records = new Map<string, string>();
  async function make(path: string, body: object): Promise<Record<string, string>> {
    const { status, text } = await send(platform, 'POST', path, key, body);
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
    const token = tokenOf(link);
    return (await make('/v1/admin/users/invites/accept', { token, first_name: canary }))['id'];
  }

  /** Make one record and return what a path names it by. A version needs no maker of its own. */
  const makers: Record<string, () => Promise<string | undefined>> = {
    '/v1/models': async () => {
      // The other workspace has its own virtual key `simulator`, and none of this slug.
      const host = { provider: 'simulator', key: 'k', custom_host: platform.simulatorUrl };
      await make('/v1/virtual-keys', { name: 'models', slug: 'models', ...host });
      return '@models/sim-text';
    },
    // The same models for clients of other APIs.
    '/v1beta/models': findModel,
    '/v1/publishers/anthropic/models': findModel,
    '/openai/deployments': findModel,
    '/model': findModel,
    '/v1/files': () => upload('batch', toJsonl([chatLine(canary)])),
    '/v1/uploads': async () => {
      const announced = { filename: 'parts.jsonl', purpose: 'batch', bytes: 100, mime_type: 'application/jsonl' };
      return (await make('/v1/uploads', announced))['id'];
    },
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
    '/v1/sessions': async () => (await make('/v1/session', {}))['session_id'],
    // A type and a sub-type, which are no records.
    '/v1/api-keys/:': () => Promise.resolve('service'),
    '/v1/configs': async () =>
      (await make('/v1/configs', { name: canary, config: { virtual_key: 'simulator' } }))['slug'],
    '/v1/guardrails': async () =>
      (await make('/v1/guardrails', { name: canary, checks: [{ id: 'default.isAllLowerCase' }] }))['slug'],
    '/v1/guardrails/:/versions': () => Promise.resolve('1'),
    '/v1/public-models': async () =>
      (await make('/v1/public-models', { name: canary, targets: [{ virtual_key: 'simulator' }] }))['slug'],
    '/v1/virtual-keys': async () =>
      (await make('/v1/virtual-keys', { name: canary, provider: 'openai', key: `sk-${canary}` }))['slug'],
    '/v1/secret-references': async () => {
      const auth_config = {
        vault_auth_type: 'token',
        vault_addr: 'https://vault.example',
        vault_token: `hvs-${canary}`,
      };
      const reference = { name: canary, manager_type: 'hashicorp_vault', auth_config, secret_path: `secret/${canary}` };
      return (await make('/v1/secret-references', { ...reference, workspace_id: workspaceId }))['slug'];
    },
    '/v1/integrations': async () => {
      const integration = { name: canary, ai_provider_id: 'openai', key: `sk-${canary}`, workspace_id: workspaceId };
      return (await make('/v1/integrations', integration))['slug'];
    },
    '/v1/providers': async () =>
      (await make('/v1/providers', { name: canary, integration_id: records.get('/v1/integrations') }))['slug'],
    '/v1/collections': async () => (await make('/v1/collections', { name: canary }))['slug'],
    '/v1/admin/price-tables': async () => {
      const providers = { acme: { source: canary, as_of: '2026-01-31', models: {} } };
      return (await make('/v1/admin/price-tables', { table: { date: '2026-01-31', providers } }))['id'];
    },
    '/v1/webhook_endpoints': async () => {
      const endpoint = { name: canary, url: `https://${canary}.example`, event_types: ['batch.completed'] };
      return (await make('/v1/webhook_endpoints', endpoint))['id'];
    },
    '/v1/siem-destinations': async () => {
      const destination = { name: canary, type: 'https', url: `https://${canary}.example`, enabled: false };
      return (await make('/v1/siem-destinations', { ...destination, workspace_id: workspaceId }))['id'];
    },
    // No batch has ended; its own ID is what must not be reached.
    '/v1/webhook_endpoints/:/deliveries': () => Promise.resolve('whd_1'),
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
      const download = () => send(platform, 'GET', `/v1/logs/exports/${id}/download`, key);
      await eventually(download, ({ text }) => text.includes('signed_url'));
      return id;
    },
    '/v1/messages/batches': async () => {
      const params = { model: '@simulator/sim-small', max_tokens: 10, messages: [{ role: 'user', content: canary }] };
      return (await make('/v1/messages/batches', { requests: [{ custom_id: canary, params }] }))['id'];
    },
    '/v1/replays': async () => {
      const batch_id = records.get('/v1/batches') ?? '';
      const replay = () => send(platform, 'POST', '/v1/replays', key, { batch_id });
      return (JSON.parse((await eventually(replay, ({ status }) => status === 200)).text) as { id: string }).id;
    },
    // A tile of the sealed log does not belong to a record, so any path will do.
    '/v1/audit/tile': () => Promise.resolve('0'),
    '/v1/audit/tile/:': () => Promise.resolve('000'),
    '/v1/audit/tile/:/:': () => Promise.resolve('000'),
    '/v1/audit/tile/:/:/:': () => Promise.resolve('000'),
    '/v1/audit/tile/:/:/:/:': () => Promise.resolve('000'),
    '/v1/logs': async () => {
      const messages = [{ role: 'user', content: canary }];
      await make('/v1/chat/completions', { model: '@simulator/sim-small', messages });
      const isLogged = ({ text }: Answer): boolean => text.includes('"id"');
      const { text } = await eventually(() => send(platform, 'GET', '/v1/logs?limit=1', key), isLogged);
      return (JSON.parse(text) as { data: { id: string }[] }).data[0]?.id;
    },
  };

  async function findModel(): Promise<string | undefined> {
    await makeRecordsOf('/v1/models/{model}');
    return records.get('/v1/models');
  }

  async function makeRecordsOf(path: string): Promise<void> {
    for (const place of recordPaths(path)) {
      if (records.has(place)) continue;
      const id = place.endsWith('/versions') ? '1' : await makers[place]?.();
      if (id === undefined) throw new Error(`${path} names a record below ${place}: add to 'makers' how one is made`);
      records.set(place, id);
    }
  }

  return { records, makeRecordsOf, make, makeUser };
}
