import { sql } from 'kysely';
import { afterAll, beforeAll } from 'vitest';
import { asker, type Ask } from '../api/people-kit.ts';
import { startScriptedPlatform, type ScriptedPlatform } from '../api/scripted-provider.ts';
import { createWorkspace } from '../api/second-workspace.ts';
import { attack } from './attack.ts';

let scripted: ScriptedPlatform;
let ask: Ask;
let tenant: string;

beforeAll(async () => {
  scripted = await startScriptedPlatform();
  ask = asker(scripted.platform);
  tenant = await createWorkspace(scripted.platform);
});
afterAll(() => scripted?.stop());

const newSecret = 'sk-ORGANISATION-NEW-SECRET';

/** An integration of the organisation, and one of the tenant that points to a host of the tenant. Returns their IDs. */
async function makeIntegrations(slug: string): Promise<{ victim: string; hostile: string }> {
  const body = { name: slug, ai_provider_id: 'openai', key: 'sk-first' };
  const victim = await ask('POST', '/integrations', { ...body, slug: `${slug}-victim` });
  const configurations = { custom_host: scripted.upstream.url.href };
  const hostile = await ask('POST', '/integrations', { ...body, slug: `${slug}-hostile`, configurations }, tenant);
  if (victim.status !== 200 || hostile.status !== 200) throw new Error(JSON.stringify([victim, hostile]));
  return { victim: victim.body['id'] ?? '', hostile: hostile.body['id'] ?? '' };
}

attack('a tenant gives a record the ID of another record as its slug or name', async () => {
  const { victim } = await makeIntegrations('given');
  const bodies: [path: string, body: object][] = [
    ['/integrations', { name: 'x', ai_provider_id: 'openai', key: 'sk-x' }],
    ['/virtual-keys', { name: 'x', provider: 'openai', key: 'sk-x' }],
    ['/configs', { name: 'x', config: { virtual_key: 'x' } }],
    ['/guardrails', { name: 'x', checks: [{ id: 'wordCount', parameters: { min: 0 } }], actions: {} }],
    ['/collections', { name: 'x' }],
  ];
  const leaks: string[] = [];
  for (const [path, body] of bodies) {
    const given = await ask('POST', path, { ...body, slug: victim }, tenant);
    if (given.status !== 400 || given.body.error.param !== 'slug') {
      leaks.push(`POST ${path} with the slug ${victim} was answered with ${given.status}`);
    }
    const derived = await ask('POST', path, { ...body, name: victim }, tenant);
    if (derived.status !== 200) throw new Error(JSON.stringify(derived));
    if (String(derived.body['slug']) === victim) leaks.push(`POST ${path} derived the slug ${victim} from the name`);
  }
  return leaks;
});

attack(
  "a record of an earlier release has the organisation's integration ID as its slug and awaits its key",
  async () => {
    const leaks: string[] = [];
    for (const [index, moved] of ['victim', 'hostile'].entries()) {
      const { victim, hostile } = await makeIntegrations(`earlier-${index}`);
      const { db } = scripted.platform.database;
      await sql`update resource set slug = ${victim} where id = ${hostile}`.execute(db);
      // An updated row moves behind the other one.
      const last = moved === 'victim' ? victim : hostile;
      await sql`update resource set updated_at = updated_at where id = ${last}`.execute(db);
      const read = await ask('GET', `/integrations/${victim}`);
      if (read.body['id'] !== victim) leaks.push(`GET answered ${read.body['id']} for ${victim}`);
      const changed = await ask('PUT', `/integrations/${victim}`, { key: newSecret });
      if (changed.body['id'] !== victim) leaks.push(`PUT changed ${changed.body['id']} instead of ${victim}`);
    }
    return leaks;
  },
);
