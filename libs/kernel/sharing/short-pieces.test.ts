import { expect, test } from 'vitest';
import { createShortPieces } from './short-pieces.ts';

test('other events are handled during long work', async () => {
  const pause = createShortPieces();
  const other = { isHandled: false };
  setImmediate(() => (other.isHandled = true));
  for (let step = 0; step < 5_000_000 && !other.isHandled; step += 1) await pause();
  expect(other.isHandled).toBe(true);
});
