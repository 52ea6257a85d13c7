import { expect, test, vi } from 'vitest';
import type { Client } from '../server/http-client.ts';
import { followResults } from './follow-results.ts';

const { wait } = vi.hoisted(() => ({ wait: vi.fn<(ms: number) => Promise<void>>() }));
vi.mock('node:timers/promises', () => ({ setTimeout: wait }));

test('a server that ends every answer without a result is asked again only after a pause', async () => {
  const events: string[] = [];
  const stop = new AbortController();
  const open: Client['open'] = () => {
    events.push('request');
    if (events.length > 10) stop.abort(new Error('asked often enough'));
    stop.signal.throwIfAborted();
    return Promise.resolve(new Response(''));
  };
  wait.mockImplementation((ms) => Promise.resolve(void events.push(ms > 0 ? 'pause' : 'no pause')));
  const client: Client = { server: 'http://sluice.test', open, json: vi.fn(), list: vi.fn() };
  const following = followResults(client, 'batch_1', undefined, { signal: stop.signal, onCursor: vi.fn() });
  await expect(following).rejects.toThrow('asked often enough');
  expect(events.slice(0, 4)).toEqual(['request', 'pause', 'request', 'pause']);
});
