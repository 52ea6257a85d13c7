import { write, writeSync } from 'node:fs';
import type { DestinationStream } from 'pino';

type Options = {
  /** Default 1, stdout. */
  fd?: number;
  /** Characters that can wait for a slow reader. Lines beyond that are dropped and counted. Default 8 Mi. */
  pendingMax?: number;
};

const retryMs = 50;
/** Time between two writes. Each wakes a thread: one write per turn took 3 % of an API under full load. */
const gatherMs = 20;
/** Attempts at the end of the process, 50 ms apart: longer than any live reader needs to make room. */
const lastTriesMax = 20;

/**
 * Writes log lines to a file descriptor in the background: all lines of one turn of the event loop in one write, and under
 * load all lines of 20 ms. A line that is followed by process.exit is still written, but a write that is running at that
 * moment can come later or not at all. A process that ends in order calls `flush` and waits for its callback, which is
 * called when all lines are written. A reader that has died or hangs, or a full disk, loses log lines but never ends the
 * process. The number of dropped lines is logged as soon as there is room again.
 *
 * (pino's own destination, sonic-boom 4.2.1, repeats a failing write forever when the process ends, so that it never ends.
 * It does not limit the waiting lines, and it ends the process when the disk behind stdout is full.)
 */
export function createLogDestination({ fd = 1, pendingMax = 8_388_608 }: Options = {}): DestinationStream & {
  flush: (callback: () => void) => void;
} {
  let pending: string[] = [];
  let pendingLength = 0;
  let dropped = 0;
  let isGone = false;
  let isWriting = false;
  let writtenAtMs = Number.NEGATIVE_INFINITY;
  /** The part that a hanging reader has not read yet. */
  let waiting: Buffer | undefined;
  let onFlushed: (() => void)[] = [];

  const take = (): string => {
    const lines = pending;
    pending = [];
    pendingLength = 0;
    if (dropped === 0) return lines.join('');
    const notice = `{"level":"warn","time":"${new Date().toISOString()}","pid":${process.pid},"lines":${dropped},"msg":"log lines were dropped"}\n`;
    dropped = 0;
    return notice + lines.join('');
  };

  const failed = (error: unknown, bytes: Buffer): void => {
    if (codeOf(error) === 'EPIPE') isGone = true;
    dropped += countLines(bytes);
  };

  const writeOut = (bytes: Buffer): void => {
    waiting = undefined;
    write(fd, bytes, 0, bytes.length, null, (error, written) => {
      const rest = bytes.subarray(written ?? 0);
      if (error && isPassing(error)) {
        waiting = rest;
        setTimeout(writeOut, retryMs, rest);
        return;
      }
      if (!error && rest.length > 0) return writeOut(rest);
      if (error) failed(error, rest);
      idle();
    });
  };

  const schedule = (): void => {
    isWriting = true;
    if (performance.now() - writtenAtMs < gatherMs) setTimeout(writePending, gatherMs);
    else setImmediate(writePending);
  };

  const writePending = (): void => {
    writtenAtMs = performance.now();
    if (isGone || pending.length === 0) idle();
    else writeOut(Buffer.from(take()));
  };

  const idle = (): void => {
    isWriting = false;
    if (pending.length > 0 && !isGone) return schedule();
    const callbacks = onFlushed;
    onFlushed = [];
    for (const callback of callbacks) callback();
  };

  process.on('exit', () => {
    if (isGone) return;
    let bytes = Buffer.concat([waiting ?? Buffer.alloc(0), Buffer.from(take())]);
    for (let tries = 0; bytes.length > 0 && tries < lastTriesMax; tries += 1) {
      try {
        bytes = bytes.subarray(writeSync(fd, bytes));
      } catch (error) {
        if (!isPassing(error)) return;
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, retryMs);
      }
    }
  });

  return {
    write(line) {
      if (isGone) return;
      if (pendingLength + line.length > pendingMax) {
        dropped += 1;
        return;
      }
      pending.push(line);
      pendingLength += line.length;
      if (!isWriting) schedule();
    },
    flush(callback) {
      if (isWriting) onFlushed.push(callback);
      else callback();
    },
  };
}

const codeOf = (error: unknown): unknown => (error instanceof Error && 'code' in error ? error.code : undefined);

const isPassing = (error: unknown): boolean => ['EAGAIN', 'EBUSY', 'EINTR'].includes(String(codeOf(error)));

function countLines(bytes: Buffer): number {
  let lines = 0;
  for (let at = bytes.indexOf(10); at !== -1; at = bytes.indexOf(10, at + 1)) lines += 1;
  return lines;
}
