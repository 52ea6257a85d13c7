import { afterAll, beforeAll } from 'vitest';
import { createGatewayKey } from '#libs/identity/gateway-key.ts';
import { providers } from '#libs/providers/provider-list.ts';
import { eventually } from '#test/eventually.ts';
import { asker, type Ask } from '#test/api/people-kit.ts';
import { startScriptedPlatform, type ScriptedPlatform } from '#test/api/scripted-provider.ts';
import { attack } from './attack.ts';

// A workspace tries to read secrets that it may only use, or that belong to others.

let rig: ScriptedPlatform;
let ask: Ask;
/** Of the attacker, whose rights end at its own workspace. */
let key: string;

const shared = 'ORGCANARY9f8e7d6c5b4a';
const unshared = 'ORGADMINPW12345';

beforeAll(async () => {
  process.env['SLUICE_SECRET_SHARED'] = JSON.stringify({ api_key: shared, admin_password: unshared });
  // The tests are the proxy, and say where a request comes from.
  rig = await startScriptedPlatform({ SLUICE_TRUSTED_PROXIES: '127.0.0.0/8' });
  ask = asker(rig.platform);
  key = (await ask('POST', '/api-keys', { name: 'attacker' })).body['key'] ?? '';
});
afterAll(async () => {
  delete process.env['SLUICE_SECRET_SHARED'];
  await rig?.stop();
});

attack('a workspace maps a secret of the organisation to every field, at a provider that echoes headers', async () => {
  const { upstream } = rig;
  const allowed_hosts = [upstream.url.origin];
  const reference = {
    name: 'shared',
    slug: 'shared',
    manager_type: 'environment',
    secret_path: 'SLUICE_SECRET_SHARED',
  };
  await ask('POST', '/secret-references', { ...reference, secret_key: 'api_key', allowed_hosts });
  upstream.script((reply, { headers }) =>
    reply.json(400, { error: { message: `Refused: ${JSON.stringify(headers)}`, type: 'invalid_request_error' } }),
  );
  const leaks: string[] = [];
  const fields = providers.flatMap(({ id, settings = {} }) =>
    ['key', ...Object.keys(settings)].flatMap((field) =>
      [undefined, 'admin_password'].map((member) => [id, field, member]),
    ),
  );
  for (const [index, [provider, target_field, secret_key]] of fields.entries()) {
    const slug = `echo-${index}`;
    const secret_mappings = [{ target_field, secret_reference_id: 'shared', secret_key }];
    const own = target_field === 'key' ? {} : { key: 'sk-own-0123456789' };
    const body = { name: slug, slug, provider, custom_host: upstream.url.href, ...own, secret_mappings };
    const made = await ask('POST', '/virtual-keys', body, key);
    if (made.status !== 200) continue;
    const messages = [{ role: 'user', content: 'Hi' }];
    const answer = await ask('POST', '/chat/completions', { model: `@${slug}/gpt-5`, messages, max_tokens: 9 }, key);
    const text = JSON.stringify(answer.body);
    if (text.includes(shared)) leaks.push(`the error of ${provider} with the secret as ${target_field}`);
    if (secret_key !== undefined) leaks.push(`another member of the secret, as ${target_field} of ${provider}`);
  }
  const sent = upstream.requests.map(({ headers }) => JSON.stringify(headers));
  if (!sent.some((headers) => headers.includes(shared))) throw new Error('The secret was never sent.');
  if (sent.some((headers) => headers.includes(unshared)))
    leaks.push('a member that the reference does not name was sent');
  return leaks;
});

attack('whoever reads records, events and rows looks for the secrets of prompts and webhooks', async () => {
  const { platform, upstream } = rig;
  const secrets = ['PARAMCANARY1', 'PARAMCANARY2', 'PATHCANARY', 'HEADERCANARY'];
  const leaks: string[] = [];
  const look = (where: string, text: string): void => {
    const found = secrets.filter((secret) => text.includes(secret));
    if (found.length > 0) leaks.push(`${found.join(', ')} in ${where}`);
  };
  const messages = '[{"role":"user","content":"Hi"}]';
  const prompt = { name: 'Secrets', slug: 'secrets', string: messages, virtual_key: 'scripted', model: 'm' };
  const parameters = { api_key: 'PARAMCANARY1', temperature: 0, metadata: { 'x-api-key': 'HEADERCANARY' } };
  const made = await ask('POST', '/prompts', { ...prompt, parameters });
  look('the new prompt', JSON.stringify(made.body));
  // A version that changes something else keeps the secrets, and an earlier one its own.
  const second = await ask('PUT', '/prompts/secrets', { string: messages.replace('Hi', 'Ho'), patch: true });
  await ask('PUT', '/prompts/secrets', { parameters: { ...parameters, api_key: 'PARAMCANARY2' }, patch: true });
  const checks = [
    { id: 'default.webhook', parameters: { webhookURL: 'https://hooks.slack.com/services/T0/B0/PATHCANARY' } },
  ];
  const guardrail = await ask('POST', '/guardrails', { name: 'Hook', slug: 'hook', checks, actions: {} });
  const config = { input_guardrails: [{ checks, id: 'x' }] };
  const stored = await ask('POST', '/configs', { name: 'Hook', slug: 'hook', config });
  const statuses = [made, second, guardrail, stored].map(({ status }) => status);
  if (statuses.some((status) => status !== 200))
    throw new Error(`not stored: ${JSON.stringify([statuses, stored.body, guardrail.body])}`);
  upstream.script((reply) => reply.json(200, { choices: [{ message: { role: 'assistant', content: 'x' } }] }));
  const before = upstream.requests.length;
  for (const version of ['1', '2', 'latest'])
    await ask('POST', `/prompts/secrets@${version}/completions`, { variables: {} });
  const sent = upstream.requests.slice(before).map(({ body }) => String(body));
  const expected = ['PARAMCANARY1', 'PARAMCANARY1', 'PARAMCANARY2'];
  if (!expected.every((secret, index) => sent[index]?.includes(secret) && sent[index]?.includes('HEADERCANARY')))
    throw new Error(`The calls went without their secrets: ${JSON.stringify(sent)}`);
  const places = [
    '/prompts/secrets',
    '/prompts/secrets/versions',
    '/prompts/secrets/versions/1',
    '/guardrails/hook',
    '/configs/hook',
  ];
  for (const place of [...places, '/events?limit=100', '/audit-logs?limit=100', '/prompts', '/configs/hook/versions'])
    look(place, JSON.stringify((await ask('GET', place)).body));
  look('render', JSON.stringify((await ask('POST', '/prompts/secrets/render', { variables: {} })).body));
  look('replay', JSON.stringify((await ask('GET', `/events/replay?stream=${made.body['id']}`)).body));
  const { rows } = await platform.api.platform.pool.query<{ text: string }>(
    'select data::text as text from event union all select data::text from resource union all select data::text from resource_version',
  );
  look('the database', JSON.stringify(rows));
  await ask('DELETE', '/prompts/secrets');
  const { rows: kept } = await platform.api.platform.pool.query(
    `select from secret where owner_id like '${made.body['id']}%'`,
  );
  if (kept.length > 0) leaks.push('the secrets of a deleted prompt stay');
  return leaks;
});

attack('a stolen key is used from outside of its networks, and from inside makes a key that is not', async () => {
  const leaks: string[] = [];
  const from = async (
    forwarded: string,
    path: string,
    secret: string,
    init: RequestInit = {},
  ): Promise<[number, string]> => {
    const headers = {
      authorization: `Bearer ${secret}`,
      'x-forwarded-for': forwarded,
      'content-type': 'application/json',
    };
    const response = await fetch(rig.platform.baseUrl + path, { ...init, headers });
    return [response.status, await response.text()];
  };
  const inside = [
    '203.0.113.9',
    '10.9.9.9, 203.0.113.9',
    '::ffff:203.0.113.9',
    '::ffff:cb00:7109',
    '203.0.113.9:5555',
    '2001:db8::7',
  ];
  const outside = [
    '198.51.100.1',
    '203.0.113.9, 198.51.100.1',
    '::ffff:198.51.100.1',
    '::ffff:c633:6401',
    '2001:db9::7',
    'unknown',
    '',
  ];
  const allowed_networks = ['203.0.113.0/24', '2001:db8::/32'];
  const { body: workspace } = await ask('POST', '/admin/workspaces', { name: 'Networks', allowed_networks });
  const made = await ask('POST', '/api-keys', { name: 'pinned', allowed_networks });
  const open = await ask('POST', '/api-keys', { name: 'of the workspace', workspace_id: workspace['id'] });
  const keys = { 'a key': String(made.body['key']), 'a key of the workspace': String(open.body['key']) };
  for (const [whose, secret] of Object.entries(keys)) {
    for (const path of ['/models', '/session', '/configs']) {
      for (const address of inside) {
        const [status, text] = await from(address, path, secret);
        if (status !== 200) throw new Error(`${whose} does not work from ${address}: ${text}`);
      }
      for (const address of outside) {
        const [status, text] = await from(address, path, secret);
        if (status !== 403 || !text.includes('address_not_allowed'))
          leaks.push(`${whose} from '${address}': ${status}`);
      }
    }
  }
  const create = (body: object) =>
    from('203.0.113.9', '/api-keys', keys['a key'], {
      method: 'POST',
      body: JSON.stringify({ name: 'wider', ...body }),
    });
  const [, inherited] = await create({});
  const child = JSON.parse(inherited) as { id: string; key: string };
  if ((await from('198.51.100.1', '/models', child.key))[0] !== 403) leaks.push('a key that it made works elsewhere');
  const wider = [['0.0.0.0/0'], [...allowed_networks, '198.51.100.0/24'], ['203.0.113.0/23'], ['2001:d00::/24']];
  for (const networks of wider)
    if ((await create({ allowed_networks: networks }))[0] !== 403) leaks.push(`it made a key for ${networks.join()}`);
  const [narrower] = await create({ allowed_networks: ['203.0.113.128/25', '2001:db8::1'] });
  if (narrower !== 200) throw new Error('It cannot make a key for a part of its networks.');
  const inviter = await ask('POST', '/api-keys', { name: 'inviter', type: 'organisation-service', allowed_networks });
  const invited = await from('203.0.113.9', '/admin/users/invites', String(inviter.body['key']), {
    method: 'POST',
    body: JSON.stringify({
      email: 'networks@example.com',
      role: 'member',
      workspaces: [{ id: 'default', role: 'member' }],
      workspace_api_key_details: { scopes: ['models.read'] },
    }),
  });
  if (invited[0] !== 200) throw new Error(invited[1]);
  const { invite_link: link } = JSON.parse(invited[1]) as { invite_link: string };
  const token = link.slice(link.indexOf('inv_'));
  const accepted = await ask('POST', '/admin/users/invites/accept', { token }, null);
  const [ofInvite] = (accepted.body as unknown as { workspace_api_keys: { key: string }[] }).workspace_api_keys;
  for (const address of [...inside, ...outside]) {
    const [, text] = await from(address, '/models', String(ofInvite?.key));
    if (text.includes('address_not_allowed') === inside.includes(address))
      leaks.push(`the key of its invite from '${address}': ${text.slice(0, 100)}`);
  }
  for (const id of [made.body['id'], child.id, open.body['id']]) {
    const body = JSON.stringify({ allowed_networks: null });
    const [status] = await from('203.0.113.9', `/api-keys/${id}`, keys['a key'], { method: 'PUT', body });
    if (status === 200) leaks.push('it removed the networks of a key');
  }
  for (const wrong of ['10.0.0.0/33', '::ffff:10.0.0.0/104', '10.0.0', 'example.com', '10.0.0.0/8,0.0.0.0/0', ''])
    if ((await ask('POST', '/api-keys', { name: 'x', allowed_networks: [wrong] })).status !== 400)
      leaks.push(`'${wrong}' is a network`);
  // The organisation can always mend the list, and sees who was refused.
  const mended = await ask('PUT', `/admin/workspaces/${workspace['id']}`, { allowed_networks: null });
  const status = await eventually(
    () => from('198.51.100.1', '/models', keys['a key of the workspace']),
    ([each]) => each === 200,
  );
  if (mended.status !== 200 || status[0] !== 200) throw new Error('The list cannot be removed.');
  const { data } = (
    await eventually(
      () => ask('GET', `/events?stream=${made.body['id']}&type=api_key.request_refused`),
      ({ body }) => body.data.length > 0,
    )
  ).body;
  if (!JSON.stringify(data).includes('198.51.100.1')) leaks.push('the refusals left no event');
  return leaks;
});

attack('somebody without a key revokes keys whose values they do not have, or finds out which exist', async () => {
  const leaks: string[] = [];
  const report = (key: string, url?: string) => ask('POST', '/api-keys/leaked', { key, url }, null);
  const made = await ask('POST', '/api-keys', { name: 'leaked' });
  const [id, value] = [String(made.body['id']), String(made.body['key'])];
  const works = async (secret: string): Promise<boolean> =>
    (await ask('GET', '/models', undefined, secret)).status === 200;
  const last = value.at(-1) === 'A' ? 'B' : 'A';
  for (const wrong of [id, value.slice(0, -1), value.slice(0, -1) + last, `********${value.slice(-4)}`, 'slk_', ''])
    if ((await report(wrong)).status !== 400) leaks.push(`'${wrong}' was accepted`);
  const unknown = await report(createGatewayKey().reveal());
  if (!(await works(value))) leaks.push('a key was revoked without its value');
  // An earlier value ends alone.
  const rotated = await ask('POST', `/api-keys/${id}/rotate`);
  const newest = String(rotated.body['key']);
  await report(value);
  if (await works(value)) leaks.push('a leaked earlier value still works');
  if (!(await works(newest))) throw new Error('The newest value has ended with the earlier one.');
  const known = await report(newest, 'https://git.example/commit?token=sk-abcdefgh12345678');
  if (await works(newest)) leaks.push('a leaked key still works');
  if (JSON.stringify(known) !== JSON.stringify(unknown) || known.status !== 200)
    leaks.push('the answer tells which keys exist');
  if (JSON.stringify(await report(newest)) !== JSON.stringify(unknown))
    leaks.push('the answer tells which keys were revoked');
  // Events are listed when all transactions that began before them have ended, also those of other tests.
  const text = await eventually(
    async () => JSON.stringify((await ask('GET', `/events?stream=${id}&type=api_key.revoked`)).body),
    (events) => events.includes('leaked') && events.includes('git.example'),
  );
  if (text.includes('sk-abcdefgh')) leaks.push('the event has a secret of the address');
  const statuses: number[] = [];
  for (let count = 0; count < 200 && !statuses.includes(429); count += 1)
    statuses.push((await report(createGatewayKey().reveal())).status);
  if (!statuses.includes(429)) leaks.push('200 guesses were not slowed down');
  return leaks;
});
