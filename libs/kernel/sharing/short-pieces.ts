import { setImmediate as nextTurn } from 'node:timers/promises';

/** A small batch waits for such a piece at each of its steps, and has about twenty. */
const pieceMs = 1;
/** So many steps are made before the clock is read, so that short work never waits. */
const stepsUnchecked = 16;

/** All long work of the process takes turns, so that one turn of the event loop has one piece. */
let lastTurn: Promise<unknown> = Promise.resolve();

/**
 * Divides long work of the main thread into short pieces. Await the result after each small step: from time to time it
 * lets the event loop handle everything that has arrived.
 */
export function createShortPieces(): () => Promise<void> {
  let startedMs = performance.now();
  let steps = 0;
  return async () => {
    steps += 1;
    if (steps < stepsUnchecked || performance.now() - startedMs < pieceMs) return;
    lastTurn = lastTurn.then(() => nextTurn());
    await lastTurn;
    startedMs = performance.now();
    steps = 0;
  };
}
