import type { Socket } from 'node:net';
import { unpacedBytesMax, type BytePace } from '#libs/kernel/byte-pace.ts';

/** Of the main thread's time, what the excess of one workspace may take in the long run, and how much at once. */
const shareOfTime = 0.1;
const burstMs = 100;
/**
 * Below this a workspace is not in excess. A collection of garbage in the middle of a piece looks like an expensive piece: a
 * worker with 7,000 calls a second counts about 20 ms of excess per second for nothing.
 */
const toleratedMs = 20;
/** What reading a piece of an answer costs at most when nothing is wrong with it: so much, and this for each byte of a body. */
const readMs = 0.05;
const byteMs = 5e-6;
/** After so much of one turn of the event loop the others get theirs. */
const turnMsMax = 2;
/**
 * The same for all sockets of a workspace that is in excess. A call of another one waits so long in each of the five or six
 * turns that it takes.
 */
const excessTurnMsMax = 0.5;
/** What is read at once for a workspace that is in excess; otherwise all that is there, 64 KiB. */
const sliceBytes = 4_096;
/** The same of the beginning of an answer, which holds all of an ordinary head. */
const headSliceBytes = 4_096;
/**
 * The same of a head that is longer. undici makes an error, with its stack, of every header that comes in one piece with the
 * one that was too many, some 50 µs each: of the shortest headers a piece of 4 KiB would take 60 ms, this takes four.
 */
const longHeadSliceBytes = 256;
const lanesMax = 1_000;

/** What the sockets of one workspace have taken beyond measure. In excess they share a turn of the event loop, too. */
type Lane = {
  paidAtMs: number;
  turnMs: number;
  /** Those that wait for a turn with time left, in order. */
  waiting: (() => void)[];
  isTurnDue: boolean;
};

/** Keeps reading one socket from taking the main thread for itself. */
export type ReadPace = {
  /** The socket's next call is one of this workspace; nothing that was before holds it up. */
  startCall: (workspaceId: string) => void;
  /** The head of the answer is there, not only of an interim one. */
  headRead: () => void;
  /** A piece of a body was handed on; `isPaused`: its reader asked for no more. */
  handedOn: (bytes: number, isPaused: boolean) => void;
  /** The answer is whole, or has failed. What its receiver does with it, between these two, is no cost of reading. */
  ending: () => void;
  ended: () => void;
};

export type ReadPaces = {
  /** Takes over how this socket is read. For the socket of an undici Client, before the Client has it. */
  pace: (socket: Socket) => ReadPace;
};

/**
 * Lets the reading of answers cost the main thread no more than answers do. A provider can make each byte cost a hundred
 * times as much (a stream of empty events, HTTP chunks of one byte, a thousand interim answers, header fields without end),
 * at the speed of the network; what that takes beyond the ordinary is counted for the workspace that made the call, and
 * once it is more than a tenth of the time its sockets are read later. An ordinary answer is never in excess, nor is a large
 * body, which comes at the pace of `bytePace`. Only the provider's next bytes wait, in the kernel's buffer.
 *
 * undici reads by `socket.read()` when the socket tells that it is readable, until there is nothing. This stands between
 * them: a read that has to wait finds nothing, and the socket tells again later.
 */
export function createReadPaces(
  now: () => number = () => performance.now(),
  bytePace: BytePace | null = null,
): ReadPaces {
  const lanes = new Map<string, Lane>();

  const laneOf = (workspaceId: string): Lane => {
    let lane = lanes.get(workspaceId);
    if (lane === undefined) {
      if (lanes.size >= lanesMax) for (const [id, { paidAtMs }] of lanes) if (paidAtMs <= now()) lanes.delete(id);
      lane = { paidAtMs: 0, turnMs: 0, waiting: [], isTurnDue: false };
      lanes.set(workspaceId, lane);
    }
    return lane;
  };

  const startTurn = (lane: Lane): void => {
    lane.isTurnDue = false;
    lane.turnMs = 0;
    while (lane.turnMs < excessTurnMsMax) {
      const next = lane.waiting.shift();
      if (next === undefined) return;
      next();
    }
    if (lane.waiting.length > 0) callTurn(lane);
  };
  const callTurn = (lane: Lane): void => {
    if (!lane.isTurnDue) setImmediate(startTurn, lane);
    lane.isTurnDue = true;
  };

  return {
    pace: (socket) => {
      const readNow = socket.read.bind(socket) as (size?: number) => Buffer | null;
      let workspace = '';
      let lane: Lane | undefined;
      /** When the piece that is being worked on was read; 0: none is. */
      let since = 0;
      let bodyBytes = 0;
      /** Of this answer, settled. */
      let answerBytes = 0;
      let turnMs = 0;
      let isHeadRead = false;
      let isHeadLong = false;
      /** Of the piece that is being worked on. */
      let freeMs = readMs;
      /** An answer ended within a piece, and not because its socket closed. */
      let isReadingOn = false;
      let isHeld = false;
      let timer: NodeJS.Timeout | undefined;

      const release = (): void => {
        isHeld = false;
        turnMs = 0;
        if (!socket.destroyed) socket.emit('readable');
      };
      /** Counts what was done since the last piece was read. */
      const settle = (at: number): void => {
        const spentMs = at - since;
        since = 0;
        turnMs += spentMs;
        const excessMs = spentMs - freeMs - bodyBytes * byteMs;
        answerBytes += bodyBytes;
        let waitMs = answerBytes > unpacedBytesMax ? (bytePace?.spend(workspace, bodyBytes) ?? 0) : 0;
        bodyBytes = 0;
        if (excessMs > 0) {
          lane ??= laneOf(workspace);
          lane.paidAtMs = Math.max(lane.paidAtMs, at) + excessMs / shareOfTime;
          waitMs = Math.max(waitMs, lane.paidAtMs - at - burstMs / shareOfTime);
        }
        if (waitMs > 0) {
          isHeld = true;
          timer = setTimeout(release, waitMs).unref();
          return;
        }
        if (lane !== undefined && lane.paidAtMs - at > toleratedMs / shareOfTime) {
          lane.turnMs += spentMs;
          if (lane.turnMs >= excessTurnMsMax) holdForTurn(lane);
        } else if (turnMs >= turnMsMax) {
          isHeld = true;
          setImmediate(release);
        }
      };
      const holdForTurn = (over: Lane): void => {
        isHeld = true;
        over.waiting.push(release);
        callTurn(over);
      };

      socket.read = (size?: number): Buffer | null => {
        if (isHeld) return null;
        const at = now();
        if (since !== 0) settle(at);
        if (isHeld) return null;
        // Another socket of the workspace may have been the first.
        if (lane === undefined && lanes.size > 0) lane = lanes.get(workspace);
        const isInExcess = lane !== undefined && lane.paidAtMs - at > toleratedMs / shareOfTime;
        if (isInExcess && lane !== undefined && lane.turnMs >= excessTurnMsMax) {
          holdForTurn(lane);
          return null;
        }
        const ordinaryMax = isInExcess ? sliceBytes : Number.POSITIVE_INFINITY;
        const sizeMax = isHeadRead ? ordinaryMax : isHeadLong ? longHeadSliceBytes : headSliceBytes;
        const isCut = socket.readableLength >= sizeMax;
        const piece = isCut ? readNow(sizeMax) : readNow(size);
        if (piece !== null) {
          since = at;
          // Nothing is free for being cut into small pieces, but for the beginning of an answer.
          freeMs = isHeadRead ? (isCut ? 0 : readMs) : isHeadLong ? 0 : readMs;
          isHeadLong = true;
        }
        return piece;
      };

      return {
        startCall: (workspaceId) => {
          workspace = workspaceId;
          lane = lanes.get(workspaceId);
          since = 0;
          turnMs = 0;
          answerBytes = 0;
          isHeadRead = false;
          isHeadLong = false;
          if (!isHeld) return;
          clearTimeout(timer);
          release();
        },
        headRead: () => {
          isHeadRead = true;
        },
        handedOn: (bytes, isPaused) => {
          bodyBytes += bytes;
          // Nobody reads on until it is told to.
          if (isPaused && since !== 0) settle(now());
        },
        ending: () => {
          isReadingOn = since !== 0;
          if (isReadingOn) settle(now());
        },
        ended: () => {
          if (isReadingOn && !isHeld) since = now();
        },
      };
    },
  };
}
