import { afterAll, beforeAll } from 'vitest';
import { relayRoutes } from '#apps/api/calls/relay-routes.ts';
import type { RelayDeps } from '#apps/api/calls/relay-call.ts';
import { createWorkspace } from '#test/api/second-workspace.ts';
import { postJson, startScriptedPlatform, type ScriptedPlatform } from '#test/api/scripted-provider.ts';
import { attack } from './attack.ts';

// A hostile provider against the browser of an administrator, and workspaces that share one account at a provider.

let scripted: ScriptedPlatform;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
});
afterAll(() => scripted?.stop());

const page = '<html><script>fetch("/v1/api-keys")</script></html>';

/** Every response that a browser could show, from the gateway or a provider. */
const inert = (headers: Headers): boolean =>
  headers.get('x-content-type-options') === 'nosniff' &&
  headers.get('content-security-policy') === "sandbox; default-src 'none'";

attack('a provider answers with a web page, and an administrator who is signed in opens its address', async () => {
  const { platform, upstream } = scripted;
  const config = JSON.stringify({ virtual_key: 'scripted' });
  const made = await postJson(platform, '/configs', { name: 'hostile', config: JSON.parse(config) as object });
  const { slug } = (await made.json()) as { slug: string };
  const keyed = await postJson(platform, '/api-keys', { name: 'browser', defaults: { config_id: slug } });
  const { key } = (await keyed.json()) as { key: string };
  const signedIn = await postJson(platform, '/session', {}, { authorization: `Bearer ${key}` });
  const cookie = signedIn.headers.get('set-cookie')?.split(';')[0] ?? '';
  upstream.script((reply) => reply.respond(200, page, { 'content-type': 'text/html' }));

  const leaks: string[] = [];
  const paths = ['/responses/resp_1', '/assistants/asst_1', '/vector_stores/vs_1/files/file-1/content', '/assistants'];
  for (const path of paths) {
    const url = platform.baseUrl + path;
    const byKey = await fetch(url, { headers: { 'x-gateway-api-key': key } });
    if (byKey.status !== 200) leaks.push(`the attack on ${path} proves nothing: its key gets ${byKey.status}`);
    if (byKey.headers.get('content-type') !== 'application/octet-stream') leaks.push(`${path} keeps its content type`);
    if (byKey.headers.get('content-disposition') !== 'attachment') leaks.push(`${path} is shown instead of saved`);
    if (!inert(byKey.headers)) leaks.push(`${path} may run script`);
    for (const how of [
      { 'sec-fetch-site': 'none', 'sec-fetch-dest': 'document' },
      { 'sec-fetch-site': 'same-origin', 'sec-fetch-dest': 'empty' },
      { 'sec-fetch-site': 'same-origin', 'sec-fetch-dest': 'iframe' },
      {},
    ]) {
      const sent = { cookie, 'x-sluice-console': '1', ...(how as Record<string, string>) };
      const answer = await fetch(url, { headers: sent });
      if ((await answer.text()).includes('<script>'))
        leaks.push(`${path} relays to a session (${JSON.stringify(how)})`);
    }
  }
  for (const path of ['/models', '/session', '/no-such-path', '/chat/completions', '/../openapi.json', '/../health']) {
    const { headers } = await fetch(platform.baseUrl + path, { headers: { cookie } });
    if (!inert(headers)) leaks.push(`${path} may run script`);
  }
  const listed = await fetch(`${platform.baseUrl}/batches`, { headers: { cookie, 'sec-fetch-dest': 'document' } });
  if (listed.status !== 403) leaks.push(`a session opens /batches as a page (${listed.status})`);
  return leaks;
});

/** An account at a provider: everything that anybody created with its key, and every path that was asked for. */
function openAccount({ upstream }: ScriptedPlatform): { reached: () => string[] } {
  const stored: { area: string; id: string }[] = [];
  const begin = upstream.requests.length;
  upstream.script((reply, { method, path, body }) => {
    const [, , area = '', id] = (path.split('?', 1)[0] ?? '').split('/');
    if (method === 'GET' && area === 'models') {
      return reply.json(200, {
        object: 'list',
        data: ['gpt-4o', 'ft:gpt-4o:org::secret'].map((name) => ({
          id: name,
          object: 'model',
          created: 1,
          owned_by: 'org',
        })),
      });
    }
    if (method === 'POST' && (id === undefined || id === 'runs')) {
      const made = { area, id: `${area}_${stored.length + 1}` };
      stored.push(made);
      const object = {
        id: made.id,
        object: area,
        output: [{ id: `item_of_${made.id}` }],
        ...(id === 'runs' ? { thread_id: made.id } : {}),
      };
      if (!body.includes('"stream":true')) return reply.json(200, object);
      const event = { type: 'response.created', response: object };
      return reply.respond(200, `data: ${JSON.stringify(event)}\n\ndata: [DONE]\n\n`, {
        'content-type': 'text/event-stream',
      });
    }
    if (method === 'GET' && id === undefined) {
      const data = stored.filter((one) => one.area === area);
      return reply.json(200, {
        object: 'list',
        data,
        first_id: data[0]?.id,
        last_id: data.at(-1)?.id,
        has_more: false,
      });
    }
    return reply.json(200, { id, object: area, choices: [], secret: 'of the workspace that made it' });
  });
  return { reached: () => upstream.requests.slice(begin).map(({ method, path }) => `${method} ${path}`) };
}

attack('a workspace names what another one stored in the account that they share', async () => {
  const { platform, upstream } = scripted;
  const account = openAccount(scripted);
  const [owner, thief] = [await createWorkspace(platform), await createWorkspace(platform)];
  await postJson(platform, '/integrations', {
    name: 'shared',
    slug: 'shared',
    ai_provider_id: 'openai',
    key: 'sk-shared-0123456789',
    configurations: { custom_host: upstream.url.href },
  });
  const share = (member: object): Promise<Response> =>
    fetch(`${platform.baseUrl}/integrations/shared${'global_workspace_access' in member ? '/workspaces' : ''}`, {
      method: 'PUT',
      headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
      body: JSON.stringify(member),
    });
  await share({ global_workspace_access: { enabled: true }, create_default_provider: true });
  const ask = async (key: string, method: string, path: string, body?: object, more: Record<string, string> = {}) => {
    const headers = {
      authorization: `Bearer ${key}`,
      'x-gateway-virtual-key': 'shared',
      'content-type': 'application/json',
      ...more,
    };
    const answer = await fetch(platform.baseUrl + path, {
      method,
      headers,
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    return { status: answer.status, text: await answer.text() };
  };
  const create = async (key: string, path: string, body: object = {}): Promise<string> => {
    const { text } = await ask(key, 'POST', path, body);
    return /"id":\s*"(\w+_\d+)"/.exec(text)?.[1] ?? `none: ${text}`;
  };
  const ids = {
    responseId: await create(owner, '/responses', { model: 'gpt-4o', input: 'Hi' }),
    conversationId: await create(owner, '/conversations'),
    assistantId: await create(owner, '/assistants', { model: 'gpt-4o' }),
    threadId: await create(owner, '/threads'),
    vectorStoreId: await create(owner, '/vector_stores'),
  };
  const streamed = await create(owner, '/responses', { model: 'gpt-4o', input: 'Hi', stream: true });
  const ran = await create(owner, '/threads/runs', { assistant_id: ids.assistantId });
  const leaks: string[] = [];

  // Every operation of these areas that has an ID in its path.
  const nothing: object = new Proxy(() => nothing, { get: () => nothing });
  const named = relayRoutes(nothing as RelayDeps).filter(({ path }) => /:\w+/.test(path));
  for (const { method, path } of named) {
    const [, name = ''] = /:(\w+)/.exec(path) ?? [];
    const filled = path
      .slice('/v1'.length)
      .replace(`:${name}`, ids[name as keyof typeof ids])
      .replaceAll(/:\w+/g, 'sub_1');
    const body = method === 'POST' ? {} : undefined;
    if (method !== 'DELETE' && (await ask(owner, method, filled, body)).status !== 200)
      leaks.push(`${method} ${path} proves nothing: its owner is refused`);
    const before = account.reached().length;
    const stolen = await ask(thief, method, filled, body);
    if (stolen.status !== 404 || account.reached().length > before) leaks.push(`${method} ${path} (${stolen.status})`);
  }
  for (const id of [streamed, ran]) {
    const path = id === ran ? `/threads/${id}` : `/responses/${id}`;
    if ((await ask(owner, 'GET', path)).status !== 200) leaks.push(`GET ${path} proves nothing`);
    if ((await ask(thief, 'GET', path)).status !== 404) leaks.push(`GET ${path}`);
  }
  const notMine = ['/files/file-1', '/files/file-1/content', '/batches/batch_1', '/fine_tuning/jobs/ftjob-1'];
  for (const path of notMine) if ((await ask(thief, 'GET', path)).status !== 404) leaks.push(`GET ${path}`);

  // Bodies that name one.
  const input = 'Hi';
  const model = 'gpt-4o';
  const messages = [{ role: 'user', content: 'Hi' }];
  const bodies: [string, object][] = [
    ['/responses', { model, input, previous_response_id: ids.responseId }],
    ['/responses', { model, input, previous_response_id: streamed }],
    ['/responses', { model, input, conversation: ids.conversationId }],
    ['/responses', { model, input, conversation: { id: ids.conversationId } }],
    ['/responses', { model, input: [{ type: 'item_reference', id: `item_of_${ids.responseId}` }] }],
    ['/responses', { model, input, tools: [{ type: 'file_search', vector_store_ids: [ids.vectorStoreId] }] }],
    ['/threads/runs', { assistant_id: ids.assistantId }],
    ['/assistants', { model, tool_resources: { file_search: { vector_store_ids: [ids.vectorStoreId] } } }],
  ];
  for (const [path, body] of bodies) {
    const shown = `POST ${path} ${JSON.stringify(body)}`;
    const own = await ask(owner, 'POST', path, body);
    if (own.status !== 200) leaks.push(`${shown} proves nothing: ${own.text}`);
    const stolen = await ask(thief, 'POST', path, body);
    if (stolen.status !== 404) leaks.push(`${shown} (${stolen.status})`);
  }
  const foreign: [string, object][] = [
    [
      '/chat/completions',
      { model, messages: [{ role: 'user', content: [{ type: 'file', file: { file_id: 'file-1' } }] }] },
    ],
    ['/chat/completions', { model: 'ft:gpt-4o:org::secret', messages }],
    ['/vector_stores', { file_ids: ['file-1'] }],
    ['/images/edits', { images: [{ file_id: 'file-1' }], prompt: 'x' }],
  ];
  for (const [path, body] of foreign) {
    const { status } = await ask(thief, 'POST', path, body);
    if (status !== 404) leaks.push(`POST ${path} ${JSON.stringify(body)} (${status})`);
  }
  if ((await ask(thief, 'DELETE', '/models/ft:gpt-4o:org::secret')).status !== 404) leaks.push('DELETE a tuned model');

  // A config that adds the name.
  const config = { virtual_key: 'shared', override_params: { previous_response_id: ids.responseId } };
  const byConfig = { 'x-gateway-config': JSON.stringify(config) };
  const { status } = await ask(thief, 'POST', '/chat/completions', { model, messages }, byConfig);
  if (status !== 404) leaks.push(`a config names a response (${status})`);

  // Lists.
  const mine = await create(thief, '/assistants', { model });
  for (const [key, other, own] of [
    [thief, ids.assistantId, mine],
    [owner, mine, ids.assistantId],
  ] as const) {
    const { text } = await ask(key, 'GET', '/assistants?limit=20');
    if (!text.includes(own)) leaks.push(`the list of assistants lacks one of its own: ${text}`);
    if (text.includes(`"${other}"`)) leaks.push('the list of assistants shows one of another workspace');
  }
  if ((await ask(thief, 'GET', '/vector_stores')).text.includes(ids.vectorStoreId)) leaks.push('GET /vector_stores');
  const models = await ask(thief, 'GET', '/models');
  if (!models.text.includes('gpt-4o') || models.text.includes('ft:')) leaks.push(`GET /models: ${models.text}`);

  // Opting out is explicit.
  if ((await ask(owner, 'DELETE', `/threads/${ids.threadId}`)).status !== 200) leaks.push('the owner cannot delete');
  await share({ share_stored_objects: true });
  const shared = await ask(thief, 'GET', `/assistants/${ids.assistantId}`);
  if (shared.status !== 200) leaks.push(`share_stored_objects shares nothing (${shared.status}: ${shared.text})`);
  return leaks;
});
