import { expect, test } from 'vitest';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { LineResult } from './settle-groups.ts';
import { Settler } from './settler.ts';

// A chunk that is snoozed, or whose claim was lost, flushes the settler that it shares with the other chunks of its
// batch. The flush must wait for results added before it, but not until the other chunks stop adding more.
test('flush resolves when the results added before it are committed, even while other chunks add more', async () => {
  const eventLog = {
    // A settle takes 10 ms.
    transact: async (): Promise<object[]> => {
      await sleep(10);
      return [{ outcomes: [], finishing: null }];
    },
  };
  const settler = new Settler({
    eventLog: eventLog as never,
    queue: {} as never,
    releaseTarget: async () => {},
    holder: () => ({ id: 'process_1', lost: new AbortController().signal }),
    finishSmallBatch: () => Promise.resolve(),
    remakePartition: () => Promise.resolve(),
    logger: createLogger({ name: 'test', level: 'silent' }),
    signal: new AbortController().signal,
    blobs: { put: () => Promise.reject(new Error('no segment was expected')) },
  }).of({ id: 'batch_1', workspaceId: 'ws_1' });
  let line = 0;
  const result = (): LineResult => ({
    chunk: 0,
    line: (line += 1),
    status: 200,
    failure: null,
    data: Buffer.from('{}'),
    usage: null,
    release: () => {},
  });
  settler.add(result()); // The only result of the snoozed chunk.
  const state = { isFlushed: false };
  void settler.flush().then(() => {
    state.isFlushed = true;
  });
  // Another chunk of the batch adds more than a group during each settle.
  for (let round = 0; round < 100 && !state.isFlushed; round += 1) {
    for (let count = 0; count < 100; count += 1) settler.add(result());
    await sleep(5);
  }
  expect(state).toEqual({ isFlushed: true });
});
