import { startGenerator } from './live-bench.ts';
import { measureTargets, type LiveSize, type Target, type TargetFigures } from './measure-targets.ts';
import type { Cleanup, Stack } from './stack.ts';

/**
 * The features of Sluice that are between the same client and the same simulator. `limited`: three policies. `signedIn`: a
 * token in the place of a key. `guarded`: a stored guardrail that looks for words. `pattern`: one with a regular expression.
 * `together`: `limited`, `signedIn` and `guarded`. The calls of all have a price.
 */
type FeatureName =
  | 'passThrough'
  | 'fallback'
  | 'transform'
  | 'cacheHit'
  | 'limited'
  | 'signedIn'
  | 'guarded'
  | 'pattern'
  | 'together';

export type FeatureFigures = Record<FeatureName, TargetFigures>;

type Headers = Record<string, string>;

/** Sends the same calls through each feature, in interleaved rounds. */
export async function measureFeatures(
  stack: Stack,
  size: LiveSize,
  cleanup: Cleanup,
  onProgress: (text: string) => void,
): Promise<FeatureFigures> {
  const { api, apiUrl, adminKey, simulatorUrl, identity } = stack;
  const post = async (key: string, path: string, body: object): Promise<Record<string, string>> => {
    const answer = await fetch(`${apiUrl}/v1${path}`, {
      method: 'POST',
      headers: headersOf(key),
      body: JSON.stringify(body),
    });
    if (!answer.ok) throw new Error(`POST ${path}: ${await answer.text()}`);
    return (await answer.json()) as Record<string, string>;
  };
  const own = { provider: 'anthropic', key: 'sk-upstream', custom_host: `${simulatorUrl}/v1` };
  await post(adminKey, '/virtual-keys', { name: 'Anthropic', slug: 'bench-anthropic', ...own });

  /** A workspace with these features: headers with its key, and with a token of a user of it. */
  const workspaceWith = async (
    name: string,
    { limited = false, check }: { limited?: boolean; check?: object },
  ): Promise<{ key: Headers; token: Headers }> => {
    const { id = '' } = await post(adminKey, '/admin/workspaces', { name });
    const { key = '' } = await post(adminKey, '/api-keys', { name, workspace_id: id });
    if (limited) await addPolicies((path, body) => post(key, path, body));
    if (check !== undefined) {
      const { slug } = await post(key, '/guardrails', { name, checks: [check], actions: { deny: true } });
      const defaults = { input_guardrails: [slug] };
      const answer = await fetch(`${apiUrl}/v1/admin/workspaces/${id}`, {
        method: 'PUT',
        headers: headersOf(adminKey),
        body: JSON.stringify({ defaults }),
      });
      if (!answer.ok) throw new Error(`no guardrail: ${await answer.text()}`);
    }
    const invite = { email: `${name}@example.com`, role: 'member', workspaces: [{ id, role: 'member' }] };
    const { invite_link: link = '' } = await post(adminKey, '/admin/users/invites', invite);
    const accepted = { token: /#token=(.+)$/.exec(link)?.[1] };
    const { id: userId = '' } = await post(adminKey, '/admin/users/invites/accept', accepted);
    const through = (credential: string): Headers => ({
      ...headersOf(credential),
      'x-gateway-virtual-key': 'simulator',
    });
    return { key: through(key), token: through(await identity.tokenOf(userId, id)) };
  };

  const headers = headersOf(adminKey);
  const config = (value: object): Headers => ({ ...headers, 'x-gateway-config': JSON.stringify(value) });
  const simulator = { virtual_key: 'simulator' };
  const through: Record<FeatureName, Headers> = {
    passThrough: { ...headers, 'x-gateway-virtual-key': 'simulator' },
    fallback: config({ strategy: { mode: 'fallback' }, targets: [simulator, simulator] }),
    transform: { ...headers, 'x-gateway-virtual-key': 'bench-anthropic' },
    cacheHit: config({ ...simulator, cache: { mode: 'simple', max_age: 3_600 } }),
    limited: (await workspaceWith('limited', { limited: true })).key,
    signedIn: (await workspaceWith('signed-in', {})).token,
    guarded: (await workspaceWith('guarded', { check: words })).key,
    pattern: (await workspaceWith('pattern', { check: pattern })).key,
    together: (await workspaceWith('together', { limited: true, check: words })).token,
  };
  const targets = (Object.keys(through) as FeatureName[]).map((name): Target<FeatureName> => ({
    name,
    process: api,
    order: { origin: apiUrl, headers: through[name] },
  }));
  return await measureTargets(targets, await startGenerator(stack, cleanup), size, onProgress);
}

const words = { id: 'default.contains', parameters: { words: ['forbidden'], operator: 'none' } };
const pattern = { id: 'default.regexMatch', parameters: { rule: 'forbidden-[0-9]+', not: true } };

const headersOf = (key: string): Headers => ({ 'content-type': 'application/json', authorization: `Bearer ${key}` });

/** A budget in cents, one in tokens and a rate, none of which is ever used up. */
async function addPolicies(post: (path: string, body: object) => Promise<unknown>): Promise<void> {
  const policy = { conditions: [], group_by: [] };
  const budget = { ...policy, credit_limit: 1e12, periodic_reset: 'monthly' };
  await post('/policies/usage-limits', { ...budget, type: 'cost' });
  await post('/policies/usage-limits', { ...budget, type: 'tokens', group_by: [{ key: 'api_key' }] });
  await post('/policies/rate-limits', { ...policy, type: 'requests', unit: 'rpm', value: 1e9 });
}
