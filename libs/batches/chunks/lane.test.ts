import { afterEach, expect, test, vi } from 'vitest';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { Lane, type Held } from './lane.ts';
import type { ClaimLimits } from './turns.ts';

type Work = { key: string; batchId: string; workspaceId: string };

const logger = createLogger({ name: 'test', level: 'silent' });
const holder = { id: 'process_1', lost: new AbortController().signal };
const lanes: Lane<Work>[] = [];
afterEach(async () => {
  await Promise.all(lanes.splice(0).map((lane) => lane.stop(0)));
});

/** A lane over work in memory, which runs until `end`. The first work that is not left out comes next. */
function setUp(ready: Work[], slots = { ofAll: 8, ofBatch: 2 }, weights: Readonly<Record<string, number>> = {}) {
  const weightOf = (workspaceId: string): number => weights[workspaceId] ?? 1;
  const running: Held<Work>[] = [];
  const ends = new Map<string, () => void>();
  let overtaken = 0;
  const claim = vi.fn(async (_holder: string, { exceptWorkspaces, exceptBatches }: ClaimLimits) => {
    const index = ready.findIndex(
      (work) => !exceptWorkspaces.includes(work.workspaceId) && !exceptBatches.includes(work.batchId),
    );
    const active = new Set(ready.map(({ workspaceId }) => workspaceId));
    const activeWeight = [...active].reduce((sum, id) => sum + weightOf(id), 0);
    if (overtaken > 0) {
      overtaken -= 1;
      return { claimed: null, found: true, left: 0, others: true, weight: 1, activeWeight };
    }
    const [claimed = null] = index === -1 ? [] : ready.splice(index, 1);
    const left = ready.filter(({ batchId }) => batchId === claimed?.batchId).length;
    const others = ready.some(({ batchId }) => batchId !== claimed?.batchId && !exceptBatches.includes(batchId));
    const weight = weightOf(claimed?.workspaceId ?? '');
    return { claimed, found: claimed !== null, left, others, weight, activeWeight };
  });
  const lane = new Lane<Work>({
    name: 'lines',
    slots,
    lease: { holder: () => holder },
    claim,
    async run(held) {
      running.push(held);
      await new Promise<void>((resolve) => ends.set(held.work.key, resolve));
      running.splice(running.indexOf(held), 1);
    },
    logger,
  });
  lanes.push(lane);
  return {
    lane,
    claim,
    running,
    count: (workspaceId: string) => running.filter(({ work }) => work.workspaceId === workspaceId).length,
    end: (key: string) => ends.get(key)?.(),
    overtake: (times: number) => {
      overtaken = times;
    },
  };
}

let keys = 0;
const workOf = (workspaceId: string, batches: number, each = 1): Work[] =>
  Array.from({ length: batches * each }, (_value, index) => ({
    key: `${workspaceId}/${(keys += 1)}`,
    batchId: `${workspaceId}/batch_${index % batches}`,
    workspaceId,
  }));

test('a workspace that is alone gets all slots, and a batch no more than its own', async () => {
  const { lane, count } = setUp(workOf('a', 2, 10));
  await lane.wake();
  expect(count('a')).toBe(4);
  const many = setUp(workOf('a', 20, 2));
  await many.lane.wake();
  // Beyond the slots only the first work of further batches.
  expect(many.count('a')).toBe(8 + 12);
});

test('nothing of a batch is claimed while its first work is about to be adopted', async () => {
  const [first, ...others] = workOf('a', 1, 3) as [Work, ...Work[]];
  const other = workOf('b', 1);
  const { lane, running } = setUp([...others, ...other], { ofAll: 8, ofBatch: 1 });
  const endWait = lane.awaitFirst(first.batchId);
  await lane.wake();
  expect(running.map(({ work }) => work)).toEqual(other);
  void lane.adopt(first, holder, { weight: 1, left: 2, isTail: false });
  endWait();
  await lane.wake();
  expect(running.map(({ work }) => work)).toEqual([...other, first]);
});

test('a workspace that comes later gets its share, although another one fills all slots and does not end', async () => {
  const ready = workOf('a', 4, 10);
  const { lane, count } = setUp(ready);
  await lane.wake();
  expect(count('a')).toBe(8);
  ready.push(...workOf('b', 4, 10));
  await lane.wake();
  expect(count('b')).toBe(4);
  expect(count('a')).toBe(8);
});

test('while others wait, a workspace has no more than its share', async () => {
  const { lane, count } = setUp([...workOf('a', 1, 10), ...workOf('b', 1, 10)], { ofAll: 8, ofBatch: 8 });
  await lane.wake();
  expect([count('a'), count('b')]).toEqual([4, 4]);
});

test.each([
  [{ a: 3 }, [6, 2]],
  [{ a: 0.1, b: 0.3 }, [2, 6]],
  [{ b: 100 }, [1, 7]],
])('the share of a workspace follows its weight: %j', async (weights, shares) => {
  const { lane, count } = setUp([...workOf('a', 1, 10), ...workOf('b', 1, 10)], { ofAll: 8, ofBatch: 8 }, weights);
  await lane.wake();
  expect([count('a'), count('b')]).toEqual(shares);
});

test('a workspace without any work here always gets some, however many hang', async () => {
  const ready = Array.from({ length: 100 }, (_value, index) => workOf(`hanging_${index}`, 1)).flat();
  const { lane, running, count } = setUp(ready);
  await lane.wake();
  expect(running).toHaveLength(100);
  ready.push(...workOf('late', 3));
  await lane.wake();
  expect(count('late')).toBe(1);
});

test('work that is nearly over makes room, up to a limit', async () => {
  const ready = workOf('a', 1, 40);
  const { lane, running, count } = setUp(ready);
  await lane.wake();
  expect(count('a')).toBe(2);
  let freed = 0;
  for (let round = 0; round < 30; round += 1) {
    if (running.at(-1)?.freeSlot() === true) freed += 1;
    await lane.wake();
  }
  expect(freed).toBe(16);
  expect(count('a')).toBe(18);
});

test('work that ends makes room for more', async () => {
  const { lane, running, end, count } = setUp(workOf('a', 1, 3));
  await lane.wake();
  end((running[0] as Held<Work>).work.key);
  await vi.waitFor(() => expect(count('a')).toBe(2));
  expect([...lane.keys()]).toHaveLength(2);
});

test('no claim is made for work that is known not to be there', async () => {
  const { lane, claim, running, count, end } = setUp(workOf('a', 1, 3));
  await lane.wake();
  // Two for the batch, which can have no third chunk now.
  expect(claim.mock.calls).toHaveLength(2);
  end((running[0] as Held<Work>).work.key);
  await vi.waitFor(() => expect(claim.mock.calls).toHaveLength(3));
  for (const { work } of running.slice()) end(work.key);
  await vi.waitFor(() => expect(count('a')).toBe(0));
  await new Promise((resolve) => setTimeout(resolve, 20));
  expect(claim.mock.calls).toHaveLength(3);
  await lane.wake();
  expect(claim.mock.calls).toHaveLength(4);
});

test('a lane is idle while more than half of its slots are free', async () => {
  const { lane, end } = setUp(workOf('a', 1), { ofAll: 4, ofBatch: 1 });
  await lane.wake();
  expect(lane.isIdle()).toBe(true);
  const [own] = workOf('b', 1) as [Work];
  const done = lane.adopt(own, holder, { weight: 1, left: 0, isTail: false });
  expect(lane.isIdle()).toBe(false);
  end(own.key);
  await done;
  expect(lane.isIdle()).toBe(true);
  await lane.stop(0);
  expect(lane.isIdle()).toBe(false);
});

test('a claim in which another process was faster is repeated, but not for ever', async () => {
  const { lane, claim, count, overtake } = setUp(workOf('a', 1));
  overtake(3);
  await lane.wake();
  expect(count('a')).toBe(1);
  overtake(1_000);
  claim.mockClear();
  await lane.wake();
  expect(claim.mock.calls.length).toBeLessThan(50);
});

test('work that is held already runs without a slot', async () => {
  const { lane, count, end } = setUp(workOf('a', 4, 10));
  await lane.wake();
  const [own] = workOf('a', 1) as [Work];
  const done = lane.adopt(own, holder);
  expect(count('a')).toBe(9);
  end(own.key);
  await done;
  expect(count('a')).toBe(8);
});

test('a wait for a slot ends when one is free, or when the signal aborts', async () => {
  const { lane, running, end } = setUp(workOf('a', 4, 2));
  await lane.wake();
  let isFree = false;
  const free = lane.whenFree(new AbortController().signal).then(() => {
    isFree = true;
  });
  await new Promise((resolve) => setTimeout(resolve, 10));
  expect(isFree).toBe(false);
  await lane.whenFree(AbortSignal.timeout(10));
  end((running[0] as Held<Work>).work.key);
  await free;
});
