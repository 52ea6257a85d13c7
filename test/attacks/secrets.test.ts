import { afterAll, beforeAll } from 'vitest';
import { providers } from '#libs/providers/provider-list.ts';
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
  rig = await startScriptedPlatform();
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
