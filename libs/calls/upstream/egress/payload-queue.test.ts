import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createPayloadQueue } from './payload-queue.ts';

test('payloads arrive once and in order, in whatever order pushes, pauses and reads happen', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.nat({ max: 40 }), { maxLength: 30 }),
      fc.nat({ max: 60 }),
      fc.scheduler(),
      async (sizes, charsMax, scheduler) => {
        const source = sizes.map((size, index) => String(index).padEnd(size, '.'));
        const socket = { paused: false };
        let sent = 0;
        const queue = createPayloadQueue({
          charsMax,
          onFull: () => {
            socket.paused = true;
          },
          // Like a socket that is resumed, it delivers synchronously, inside the reader's call.
          onDrained: () => {
            socket.paused = false;
            deliver();
          },
          onLeft: () => {},
        });
        const deliver = (): void => {
          while (!socket.paused && sent < source.length) queue.push([source[sent++] ?? '']);
          if (sent === source.length && !socket.paused) queue.end();
        };
        const read: string[] = [];
        const reading = (async () => {
          for await (const batch of queue.payloads) {
            read.push(...batch);
            await scheduler.schedule(Promise.resolve(), 'slow reader');
          }
        })();
        void scheduler.schedule(Promise.resolve(), 'provider').then(deliver);
        await scheduler.waitFor(reading);
        expect(read).toEqual(source);
      },
    ),
  );
});

test('a failure is reported after the payloads before it', async () => {
  const queue = createPayloadQueue({ charsMax: 1, onFull: () => {}, onDrained: () => {}, onLeft: () => {} });
  queue.push(['a']);
  queue.fail(new Error('died'));
  queue.push(['late']);
  const read: string[] = [];
  await expect(async () => {
    for await (const batch of queue.payloads) read.push(...batch);
  }).rejects.toThrow('died');
  expect(read).toEqual(['a']);
});
