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
