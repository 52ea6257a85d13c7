import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { createThreadLane, type ThreadLane, type ThreadLaneOptions } from './thread-lane.ts';

// Depending on the task, it returns it, never ends, ends its thread, throws, or returns its environment.
const work = `
  export default (task) => {
    if (task === 'hang') for (;;);
    if (task === 'exit') process.exit(1);
    if (task === 'throw') throw new Error('no');
    return task === 'environment' ? JSON.stringify(process.env) : task;
  };
`;
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-lane-'));
  await writeFile(path.join(folder, 'work.mjs'), work);
});
afterAll(() => rm(folder, { recursive: true }));

let lane: ThreadLane<string, string>;
const open = (options: Partial<ThreadLaneOptions> = {}): void => {
  const module = pathToFileURL(path.join(folder, 'work.mjs'));
  lane = createThreadLane({ module, threads: 2, threadMemoryMb: 256, idleTimeoutMs: 1_000, ...options });
};
afterEach(() => lane.stop());

const inTime = { timeoutMs: 60_000 };

test('a task that hangs is killed at its deadline, and the next one gets a new thread', async () => {
  open({ threads: 1 });
  expect(await lane.run('hang', { timeoutMs: 50, group: 'a' })).toBeNull();
  expect(await lane.run('fine', { ...inTime, group: 'a' })).toBe('fine');
});

test('a task that ends its thread or throws has no result, and does not affect the others', async () => {
  open();
  const others = ['one', 'two', 'three'].map((task) => lane.run(task, { ...inTime, group: 'b' }));
  expect(await lane.run('exit', { ...inTime, group: 'a' })).toBeNull();
  expect(await lane.run('throw', { ...inTime, group: 'a' })).toBeNull();
  expect(await Promise.all(others)).toEqual(['one', 'two', 'three']);
});

test('a thread has the cache of compiled modules, and nothing else of the environment', async () => {
  open();
  const environment = await lane.run('environment', { ...inTime, group: 'a' });
  expect(JSON.parse(environment ?? '')).toEqual({ NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'] });
});

test('one group never has all threads: another gets its turn while the first one hangs', async () => {
  open();
  const end = new AbortController();
  const hanging = ['hang', 'hang', 'hang'].map((task) =>
    lane.run(task, { ...inTime, group: 'hostile', signal: end.signal }).catch(() => 'ended'),
  );
  expect(await lane.run('fine', { ...inTime, group: 'victim' })).toBe('fine');
  expect(lane.stats()).toMatchObject({ running: 1, waiting: 2 });
  end.abort();
  expect(await Promise.all(hanging)).toEqual(['ended', 'ended', 'ended']);
});

test('a group with too many waiting tasks is rejected, and another is not', async () => {
  open({ threads: 1, waitingMax: { ofGroup: 1, ofAll: 2 } });
  const end = new AbortController();
  const { signal } = end;
  const hanging = lane.run('hang', { ...inTime, group: 'a', signal }).catch(() => 'ended');
  await eventually(
    () => lane.stats().running,
    (running) => running === 1,
  );
  const waits = lane.run('fine', { ...inTime, group: 'a' });
  await expect(lane.run('fine', { ...inTime, group: 'a' })).rejects.toMatchObject({
    code: 'server_overloaded',
    retryAfterMs: 1_000,
  });
  const other = lane.run('fine', { ...inTime, group: 'b' });
  await expect(lane.run('fine', { ...inTime, group: 'c' })).rejects.toMatchObject({ code: 'server_overloaded' });
  end.abort();
  expect(await Promise.all([hanging, waits, other])).toEqual(['ended', 'fine', 'fine']);
});

test('a task whose caller leaves while it waits is never started', async () => {
  open({ threads: 1 });
  const [first, second] = [new AbortController(), new AbortController()];
  const hanging = lane.run('hang', { ...inTime, group: 'a', signal: first.signal }).catch(() => 'ended');
  await eventually(
    () => lane.stats().running,
    (running) => running === 1,
  );
  const waits = lane.run('hang', { ...inTime, group: 'b', signal: second.signal }).catch(() => 'left');
  second.abort();
  expect(await waits).toBe('left');
  first.abort();
  expect(await hanging).toBe('ended');
  expect(lane.stats()).toEqual({ begun: 1, running: 0, waiting: 0 });
});
