import { afterAll, beforeAll, expect, test } from 'vitest';
import { sleep } from '#libs/kernel/sleep.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { createWorkspace } from './second-workspace.ts';

// Lists of records at earlier moments, for all kinds. test/integration/event-log/list-records.test.ts has their pages.

type Json = Record<string, unknown>;
type State = { stream: string; recorded_at: string; state: Json };

let platform: TestPlatform;
let otherKey: string;
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
  otherKey = await createWorkspace(platform);
});
afterAll(() => platform.stop());

async function call(method: string, path: string, body?: object, key = platform.adminKey) {
  const response = await fetch(platform.baseUrl + path, {
    method,
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Json };
}

const records = async (query: string, key?: string): Promise<State[]> =>
  (await call('GET', `/events/records?${query}`, undefined, key)).body['data'] as State[];

const names = (states: readonly State[]) => states.map(({ state }) => state['name']);

const config = { virtual_key: 'a' };

test('configs are listed as they were, also deleted ones, without their secrets, and only to their workspace', async () => {
  const headers = { 'x-token': 'CANARY-1' };
  const checks = [{ id: 'default.webhook', parameters: { webhookURL: 'https://example.com/hook', headers } }];
  await call('POST', '/configs', { name: 'first', slug: 'first', config });
  await call('POST', '/configs', { name: 'second', slug: 'second', config });
  await call('POST', '/guardrails', { name: 'hooked', checks });
  const hooked = (await records('kind=guardrail'))[0];
  const at = hooked?.recorded_at ?? '';
  await sleep(5);
  await call('PUT', '/configs/first', { name: 'renamed' });
  await call('DELETE', '/configs/second');

  expect(names(await records(`kind=config&at=${at}`))).toEqual(['second', 'first']);
  expect(names(await records('kind=config'))).toEqual(['renamed']);
  expect(names(await records(`kind=guardrail&at=${at}`))).toEqual(['hooked']);
  expect(JSON.stringify(await records(`kind=guardrail&at=${at}`))).not.toContain('CANARY');
  expect(await records(`kind=config&at=${at}`, otherKey)).toEqual([]);
  expect((await call('GET', '/events/records?kind=config&workspace_id=default', undefined, otherKey)).status).toBe(404);
});

test('an organisation key lists the records of the organisation, of another workspace, and all workspaces', async () => {
  await call('POST', '/configs', { name: 'elsewhere', slug: 'elsewhere', config }, otherKey);
  const workspaces = await records('kind=workspace&workspace_id=org_default');
  expect(workspaces.length).toBeGreaterThan(1);
  const lists = await Promise.all(workspaces.map(({ stream }) => records(`kind=config&workspace_id=${stream}`)));
  expect(lists.flatMap(names)).toContain('elsewhere');
  expect(await records('kind=user&workspace_id=org_default')).toMatchObject([
    { state: { email: expect.any(String), deleted_at: null } },
  ]);
  const { status } = await call('GET', '/events/records?kind=user&workspace_id=org_default', undefined, otherKey);
  expect(status).toBe(404);
});
