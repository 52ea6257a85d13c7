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

attack('a tenant gives a record the ID of another record as its slug or name', async () => {
  const made = await ask('POST', '/integrations', { name: 'victim', ai_provider_id: 'openai', key: 'sk-first' });
  if (made.status !== 200) throw new Error(JSON.stringify(made));
  const victim = made.body['id'] ?? '';
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

type Operation = { parameters?: { name: string; in: string; required?: boolean }[] };

attack('query parameters of GET operations contain U+0000, as it is or inside JSON', async () => {
  const { baseUrl, adminKey } = scripted.platform;
  const document = (await (await fetch(new URL('/openapi.json', baseUrl))).json()) as {
    paths: Record<string, Record<string, Operation>>;
  };
  const texts = ['\0', '{"a":"\\u0000"}', '{"\\u0000":"a"}', '{"a":["\\u0000"]}', 'a:\0'];
  const leaks: string[] = [];
  // Operations that share a parameter share its contract, such as all graphs: two of them are enough.
  const seen = new Map<string, number>();
  const times = { time_of_generation_min: '2026-01-01T00:00:00Z', time_of_generation_max: '2026-01-02T00:00:00Z' };
  let refused = 0;
  for (const [path, { get }] of Object.entries(document.paths)) {
    const query = get?.parameters?.filter((parameter) => parameter.in === 'query') ?? [];
    // A stream does not end.
    if (path.includes('stream') || path.endsWith('/changes')) continue;
    const fresh = query.filter(({ name }) => (seen.get(name) ?? 0) < 2);
    for (const { name } of fresh) seen.set(name, (seen.get(name) ?? 0) + 1);
    const requests = fresh.flatMap(({ name }) => texts.map((text) => ({ name, text })));
    await Promise.all(
      requests.map(async ({ name, text }) => {
        const url = new URL(path.replaceAll(/\{\w+\}/g, 'default'), baseUrl);
        for (const [time, value] of Object.entries(times)) {
          if (query.some((parameter) => parameter.required && parameter.name === time))
            url.searchParams.set(time, value);
        }
        url.searchParams.set(name, text);
        const answer = await fetch(url, { headers: { authorization: `Bearer ${adminKey}` } });
        await answer.body?.cancel();
        if (answer.status >= 500) leaks.push(`GET ${path}?${name}=${JSON.stringify(text)} was ${answer.status}`);
        if (answer.status === 400) refused += 1;
      }),
    );
  }
  if (refused < 50) throw new Error(`only ${refused} requests were refused`);
  const filters = { metadata: { team: '\0' } };
  const exported = await ask('POST', '/logs/exports', { filters, requested_data: ['id'] });
  if (exported.status !== 400) leaks.push(`POST /logs/exports was answered with ${exported.status}`);
  return leaks;
});
