import { once } from 'node:events';
import type { Socket } from 'node:net';
import { Readable } from 'node:stream';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { Call } from '../egress/connection-call.ts';
import { createBytePace } from '#libs/kernel/sharing/byte-pace.ts';
import { ReadPaces, type ReadPace } from './read-pace.ts';

const pieceBytes = 65_536;

/** The time that reading takes, in addition to that of the timers. */
let spentMs = 0;
const now = (): number => performance.now() + spentMs;
let paces: ReadPaces;
const sockets: Readable[] = [];

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
  spentMs = 0;
  paces = new ReadPaces(now);
});
afterEach(() => {
  for (const socket of sockets.splice(0)) socket.destroy();
  vi.useRealTimers();
});

type Reading = { pace: ReadPace; bytes: () => number; turns: () => number; closed: Promise<unknown> };

/**
 * A socket that always has more data, read in the way that undici does. Each byte costs `costMs` of main-thread time.
 */
function startReading(
  workspaceId: string,
  costMs: number,
  options: { onPiece?: (pace: ReadPace, bytes: number) => void; isHead?: boolean } = {},
): Reading {
  // A piece never arrives synchronously, like with a network.
  const more = (): void => void (socket.destroyed || socket.push(Buffer.alloc(pieceBytes)));
  const socket = new Readable({ highWaterMark: pieceBytes, read: () => process.nextTick(more) });
  sockets.push(socket);
  const closed = once(socket, 'close');
  closed.catch(() => {});
  const pace = paces.pace(socket as Socket);
  pace.startCall(workspaceId);
  if (options.isHead !== true) pace.headRead();
  let bytes = 0;
  let turns = 0;
  socket.on('readable', () => {
    turns += 1;
    for (let piece = socket.read() as Buffer | null; piece !== null; piece = socket.read() as Buffer | null) {
      spentMs += piece.length * costMs;
      bytes += piece.length;
      options.onPiece?.(pace, piece.length);
      if (bytes > 1_000 * pieceBytes) socket.destroy(); // Otherwise it would never end.
    }
  });
  return { pace, bytes: () => bytes, turns: () => turns, closed };
}

const passOn = (pace: ReadPace, bytes: number): void => pace.handedOn(bytes, false);

async function someTurns(count = 200): Promise<void> {
  for (let turn = 0; turn < count; turn += 1) await nextTurn();
}

test('read(0), which Node calls to receive more data, leaves the buffer as it is', () => {
  const socket = new Readable({ read: () => {} });
  sockets.push(socket);
  paces.pace(socket as Socket).startCall('ws');
  // More than is read of a head in one step.
  socket.push(Buffer.alloc(10_000));
  expect([socket.read(0), socket.readableLength]).toEqual([null, 10_000]);
});

describe('an ordinary answer', () => {
  test('of any size is read without waiting', async () => {
    const body = startReading('ws', 4e-6, { onPiece: passOn });
    await someTurns();
    expect(body.bytes()).toBeGreaterThan(64 * pieceBytes);
    expect(vi.getTimerCount()).toBe(0);
  });

  test('lets other tasks run in the same turn', async () => {
    const body = startReading('ws', 4e-6, { onPiece: passOn });
    await someTurns();
    expect(body.turns()).toBeGreaterThan(4); // 4 MiB took 17 ms.
  });
});

test('an answer that is interrupted by garbage collection now and then is read in whole pieces', async () => {
  const sizes: number[] = [];
  const answers = startReading('ws', 4e-6, {
    onPiece: (pace, bytes) => {
      if (sizes.push(bytes) % 10 === 0) spentMs += 0.5;
      pace.handedOn(bytes, false);
    },
  });
  await someTurns();
  expect(sizes.length).toBeGreaterThan(64);
  expect(new Set(sizes)).toEqual(new Set([pieceBytes]));
  expect(answers.bytes()).toBe(sizes.length * pieceBytes);
});

describe('a large answer', () => {
  test('is read at the pace of its workspace, on any number of sockets, and delays no other', async () => {
    paces = new ReadPaces(now, createBytePace(10 * pieceBytes, now));
    const large = [1, 2, 3].map(() => startReading('ws', 1e-6, { onPiece: passOn }));
    await someTurns();
    const read = (): number => large.reduce((sum, { bytes }) => sum + bytes(), 0) / pieceBytes;
    const begun = read();
    expect(begun).toBeLessThan(20); // The first four pieces of each do not count as a large answer.
    for (let tenth = 0; tenth < 100; tenth += 1) {
      vi.advanceTimersByTime(100);
      await someTurns(3);
    }
    expect(read() - begun).toBeGreaterThan(90);
    expect(read() - begun).toBeLessThan(110); // Ten pieces a second, for ten seconds.
    const other = startReading('other', 1e-6, { onPiece: passOn });
    await someTurns();
    expect(other.bytes()).toBeGreaterThanOrEqual(4 * pieceBytes);
  });
});

describe('a flood', () => {
  const floodCostMs = 1e-4; // 6.5 ms for 64 KiB: events without content.

  test('is read in a tenth of the time, in small pieces, once its workspace has used its burst', async () => {
    const flood = startReading('ws', floodCostMs);
    await someTurns();
    const burst = flood.bytes();
    expect(burst * floodCostMs).toBeGreaterThan(100);
    expect(burst * floodCostMs).toBeLessThan(130); // This includes the ordinary cost.
    for (let tenth = 0; tenth < 100; tenth += 1) {
      vi.advanceTimersByTime(100);
      await someTurns(10);
    }
    const readMs = (flood.bytes() - burst) * floodCostMs;
    expect(readMs).toBeGreaterThan(900);
    expect(readMs).toBeLessThan(1_200); // Within a period of 10 s.
  });

  test('of small events, whose bytes are passed on, gets no free time for arriving in small pieces', async () => {
    const eventCostMs = 1.5e-5;
    const floods = Array.from({ length: 8 }, () => startReading('ws', eventCostMs, { onPiece: passOn }));
    const read = (): number => floods.reduce((sum, { bytes }) => sum + bytes(), 0);
    await someTurns(10_000);
    const burst = read();
    const startMs = now();
    for (let ms = 0; ms < 2_000; ms += 1) {
      vi.advanceTimersByTime(1);
      await someTurns(2);
    }
    // A tenth of the time, plus half of that for the ordinary cost of a body.
    const share = ((read() - burst) * eventCostMs) / (now() - startMs);
    expect(share).toBeGreaterThan(0.1);
    expect(share).toBeLessThan(0.17);
  });

  test('gets one share, on any number of sockets', async () => {
    const floods = Array.from({ length: 8 }, () => startReading('ws', floodCostMs));
    await someTurns();
    const read = (): number => floods.reduce((sum, { bytes }) => sum + bytes(), 0);
    const burst = read();
    for (let tenth = 0; tenth < 100; tenth += 1) {
      vi.advanceTimersByTime(100);
      await someTurns(3);
    }
    expect((read() - burst) * floodCostMs).toBeLessThan(1_300);
  });

  test('takes no more of a turn of the event loop on many sockets than on one', async () => {
    let turn = 0;
    const spentIn = new Map<number, number>();
    const onPiece = (_pace: ReadPace, bytes: number): void => {
      spentIn.set(turn, (spentIn.get(turn) ?? 0) + bytes * floodCostMs);
    };
    const floods = Array.from({ length: 6 }, () => startReading('ws', floodCostMs, { onPiece }));
    // The first piece of each is read before anything is known about it.
    await someTurns(2);
    spentIn.clear();
    for (; turn < 80; turn += 1) await nextTurn();
    expect(floods.every(({ bytes }) => bytes() > pieceBytes)).toBe(true);
    const spent = [...spentIn.values()];
    expect(spent.reduce((sum, each) => sum + each, 0)).toBeGreaterThan(20);
    expect(Math.max(...spent)).toBeLessThan(1.5);
  });

  test('whose socket is closed is not read any further', () => {
    const socket = new Readable({ read: () => {} });
    socket.on('error', () => {});
    socket.push(Buffer.alloc(pieceBytes));
    paces.pace(socket as Socket).startCall('ws');
    expect(socket.read()).toHaveLength(4_096);
    socket.destroy(new Error('too many headers'));
    expect(socket.read()).toBe(null);
  });

  test('of headers is read in small pieces until the head is complete', async () => {
    const sizes: number[] = [];
    const onPiece = (pace: ReadPace, bytes: number): void => {
      sizes.push(bytes);
      if (sizes.length === 2) pace.headRead();
    };
    startReading('ws', 1e-6, { isHead: true, onPiece });
    await someTurns(1);
    expect(sizes.slice(0, 2)).toEqual([4_096, 4_096]);
    expect(sizes[2]).toBeGreaterThan(4_096);
  });

  test('of headers is read up to 16 KiB, and more only after the head of an interim answer', async () => {
    const { pace, bytes, closed } = startReading('ws', 1e-6, {
      isHead: true,
      onPiece: () => {
        if (bytes() === 8_192) pace.interimHeadRead();
      },
    });
    await expect(closed).rejects.toMatchObject({ code: 'UND_ERR_HEADERS_OVERFLOW' });
    expect(bytes()).toBe(8_192 + 16_384);
  });

  test('delays nobody else: not the ordinary answers of its workspace, and not the next call on its socket', async () => {
    const flood = startReading('ws_a', floodCostMs);
    await someTurns();
    const burst = flood.bytes();
    const ordinary = startReading('ws_a', 4e-6, { onPiece: passOn });
    await someTurns();
    expect(ordinary.bytes()).toBeGreaterThan(64 * pieceBytes);
    flood.pace.startCall('ws_b');
    expect(flood.bytes()).toBeGreaterThan(burst);
  });

  test('is also one that fails in the middle of a piece, after which nothing is read: headers without end', () => {
    let isOver = false;
    const owner = { ended: () => {}, giveUp: () => {}, resend: () => false };
    const ignored = (): void => {};
    const handler = {
      onRequestStart: ignored,
      onResponseStart: ignored,
      onResponseData: ignored,
      onResponseEnd: ignored,
      onResponseError: () => (isOver = true),
    };
    const open = (): { socket: Readable; pace: ReadPace } => {
      const socket = new Readable({ read: () => {} });
      socket.push(Buffer.alloc(pieceBytes));
      const pace = paces.pace(socket as Socket);
      pace.startCall('ws');
      return { socket, pace };
    };
    spentMs = 1; // 0 means that there is no time.
    const { socket, pace } = open();
    const call = new Call(owner, { origin: 'http://h.example', path: '/', method: 'GET' }, handler, {
      answered: 0,
      pace,
    });
    socket.read();
    spentMs += 200;
    call.onResponseError(null as never, new Error('too many headers'));
    expect(isOver).toBe(true);
    // Twice the burst was used up, so the next one is read only as far as needed to recognise it.
    const next = open().socket;
    expect(next.read()).toHaveLength(4_096);
    spentMs += 1;
    expect(next.read()).toBe(null);
  });

  test('gets no free time, however small the pieces of a long head are', async () => {
    const flood = startReading('ws', floodCostMs, { isHead: true });
    await someTurns(2_000);
    const burst = flood.bytes();
    for (let tenth = 0; tenth < 100; tenth += 1) {
      vi.advanceTimersByTime(100);
      await someTurns(10);
    }
    expect((flood.bytes() - burst) * floodCostMs).toBeLessThan(1_200); // Within a period of 10 s.
  });

  test('does not include what the receiver does with a whole answer', async () => {
    const answers = startReading('ws', 4e-6, {
      onPiece: (pace, bytes) => {
        pace.handedOn(bytes, false);
        pace.ending();
        spentMs += 1_000; // The piece is parsed.
        pace.ended();
      },
    });
    await someTurns();
    expect(answers.bytes()).toBeGreaterThan(64 * pieceBytes);
    expect(vi.getTimerCount()).toBe(0);
  });

  test('does not include the time between two pieces, in which nothing was read', async () => {
    const answers = startReading('ws', 4e-6, {
      onPiece: (pace, bytes) => {
        pace.handedOn(bytes, true);
        spentMs += 1_000; // The reader of a stream is slow.
      },
    });
    await someTurns();
    expect(answers.bytes()).toBeGreaterThan(64 * pieceBytes);
  });
});
