import { randomBytes } from 'node:crypto';

/** Makes another workspace with a key that may do everything in it, and returns the key. `adminKey` is the organisation's. */
export async function createWorkspace(platform: { baseUrl: string; adminKey: string }): Promise<string> {
  const post = async (path: string, body: object): Promise<Record<string, string>> => {
    const response = await fetch(`${platform.baseUrl}${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    if (!response.ok) throw new Error(`POST ${path} was answered with ${response.status}: ${await response.text()}`);
    return (await response.json()) as Record<string, string>;
  };
  const { id } = await post('/admin/workspaces', { name: `test-${randomBytes(4).toString('hex')}` });
  const { key } = await post('/api-keys', { name: 'admin', workspace_id: id });
  if (key === undefined) throw new Error('the new workspace has no key');
  return key;
}
