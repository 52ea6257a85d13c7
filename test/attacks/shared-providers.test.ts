import { afterAll, beforeAll } from 'vitest';
import { postJson, startScriptedPlatform, type ScriptedPlatform } from '#test/api/scripted-provider.ts';
import { attack } from './attack.ts';

// A hostile provider against the browser of an administrator.

let scripted: ScriptedPlatform;
beforeAll(async () => {
  scripted = await startScriptedPlatform();
});
afterAll(() => scripted?.stop());

const page = '<html><script>fetch("/v1/api-keys")</script></html>';

/** Every answer that a browser could show, whoever made it. */
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
