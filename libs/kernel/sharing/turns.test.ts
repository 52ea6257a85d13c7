import { describe, expect, test } from 'vitest';
import { createTurns, type Turns } from './turns.ts';

/** Work that runs until `end` is called, and the order in which it began. */
function createWork(turns: Turns) {
  const started: string[] = [];
  const ends = new Map<string, () => void>();
  return {
    started,
    start(workspaceId: string, name: string, signal?: AbortSignal) {
      const { promise, resolve } = Promise.withResolvers<void>();
      ends.set(name, resolve);
      const done = turns.run(
        workspaceId,
        async () => {
          started.push(name);
          await promise;
        },
        signal,
      );
      done.catch(() => {});
      return done;
    },
    async end(name: string) {
      ends.get(name)?.();
      await new Promise(setImmediate);
    },
  };
}

describe('turns', () => {
  test('give a workspace half of what runs at once, and leave the rest to others', async () => {
    const work = createWork(createTurns({ runningMax: 4, waitingMax: 10 }, 'searches'));
    for (let index = 1; index <= 4; index += 1) void work.start('ws_1', `own ${index}`);
    void work.start('ws_2', 'other');
    await new Promise(setImmediate);
    expect(work.started).toEqual(['own 1', 'own 2', 'other']);
    await work.end('own 1');
    expect(work.started.at(-1)).toBe('own 3');
  });

  test('of long work leave something for a third workspace while two hold as much as they can', async () => {
    const work = createWork(createTurns({ runningMax: 8, waitingMax: 10, isLong: true }, 'streams'));
    for (const workspaceId of ['ws_1', 'ws_2', 'ws_3']) {
      for (let index = 1; index <= 8; index += 1) void work.start(workspaceId, `${workspaceId} ${index}`);
    }
    await new Promise(setImmediate);
    const held = (workspaceId: string) => work.started.filter((name) => name.startsWith(workspaceId)).length;
    expect(['ws_1', 'ws_2', 'ws_3'].map(held)).toEqual([4, 2, 1]);
  });

  test('refuse more than may wait, with when to try again', async () => {
    const work = createWork(createTurns({ runningMax: 1, waitingMax: 1 }, 'searches'));
    void work.start('ws_1', 'runs');
    void work.start('ws_1', 'waits');
    await expect(work.start('ws_1', 'refused')).rejects.toMatchObject({
      kind: 'rate_limited',
      code: 'too_many_queries',
    });
    void work.start('ws_2', 'other');
    await work.end('runs');
    await work.end('waits');
    expect(work.started).toEqual(['runs', 'waits', 'other']);
  });

  test('are given up by a caller that leaves, and given back by work that fails', async () => {
    const turns = createTurns({ runningMax: 1, waitingMax: 1 }, 'searches');
    const work = createWork(turns);
    void work.start('ws_1', 'runs');
    const leaving = new AbortController();
    const left = work.start('ws_1', 'leaves', leaving.signal);
    leaving.abort(new Error('the client left'));
    await expect(left).rejects.toThrow('the client left');
    void work.start('ws_1', 'takes its place');
    await work.end('runs');
    await work.end('takes its place');
    await expect(turns.run('ws_1', () => Promise.reject(new Error('broken')))).rejects.toThrow('broken');
    expect(await turns.run('ws_1', () => Promise.resolve('answered'))).toBe('answered');
    expect(work.started).toEqual(['runs', 'takes its place']);
  });
});
