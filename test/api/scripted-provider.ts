import { startUpstream, type Upstream } from '#test/upstream.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';

/** Never seen by anybody but the provider that it was stored for. */
export const canary = 'sk-CANARY-0123456789abcdef';

export type ScriptedPlatform = { platform: TestPlatform; upstream: Upstream; stop: () => Promise<void> };

/** Posts JSON with the admin key (or without, or with more headers). */
export async function postJson(
  { baseUrl, adminKey }: TestPlatform,
  route: string,
  body: unknown,
  headers: Record<string, string> = {},
): Promise<Response> {
  return await fetch(`${baseUrl}${route}`, {
    method: 'POST',
    headers: { authorization: `Bearer ${adminKey}`, 'content-type': 'application/json', ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
}

/** Stores a provider as a virtual key of this slug. */
export async function storeVirtualKey(
  platform: TestPlatform,
  slug: string,
  customHost: string,
  provider = 'openai-compatible',
): Promise<void> {
  const body = { name: slug, slug, provider, key: canary, custom_host: customHost };
  const response = await postJson(platform, '/virtual-keys', body);
  if (response.status !== 200) throw new Error(`no virtual key: ${await response.text()}`);
}

/**
 * A platform without a worker, and a provider whose every byte is scripted: `model: "@scripted/any"`. The platform may
 * call anything on the loopback network.
 */
export async function startScriptedPlatform(environment: Record<string, string> = {}): Promise<ScriptedPlatform> {
  const upstream = await startUpstream();
  const platform = await startPlatform({
    worker: false,
    environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8', ...environment },
  });
  await storeVirtualKey(platform, 'scripted', upstream.url.href);
  return {
    platform,
    upstream,
    async stop() {
      await platform.stop();
      await upstream.stop();
    },
  };
}
