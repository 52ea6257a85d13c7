import type { Socket } from 'node:net';
import { unpacedBytesMax, type BytePace } from '#libs/kernel/byte-pace.ts';

/** The share of the main thread's time that the excess of one workspace can take in the long run, and its burst. */
const shareOfTime = 0.1;
const burstMs = 100;
/**
 * Below this a workspace is not in excess. A garbage collection in the middle of a piece makes that piece look
 * expensive: a worker with 7,000 calls a second measures about 20 ms of such excess per second.
 */
const toleratedMs = 20;
/** The maximum cost of reading a piece of an ordinary answer: a fixed time, and a time for each byte of a body. */
const readMs = 0.05;
const byteMs = 5e-6;
/** After this much of one turn of the event loop, other tasks run. */
const turnMsMax = 2;
/**
 * The same for all sockets of a workspace that is in excess. A call of another workspace waits this long in each of its
 * five or six turns.
 */
const excessTurnMsMax = 0.5;
/**
 * How much is read in one step for a workspace that is in excess. For others, everything that has arrived is read, 64
 * KiB.
 */
const sliceBytes = 4_096;
/** The same for the beginning of an answer, which contains the whole head of an ordinary one. */
const headSliceBytes = 4_096;
/**
 * The same for a head that is longer. When there are too many headers, undici makes an error, with its stack, for each
 * further header in the same piece, which takes some 50 µs. With the shortest headers, a piece of 4 KiB would take 60
 * ms; this one takes four.
 */
const longHeadSliceBytes = 256;
const lanesMax = 1_000;

/** The excess time of the sockets of one workspace. While it is in excess, they also share a turn of the event loop. */
type Lane = {
  paidAtMs: number;
  turnMs: number;
  /** Sockets that wait for a turn in which time is left, in order. */
  waiting: (() => void)[];
  isTurnDue: boolean;
};

/** Prevents one socket from using all of the main thread's time. */
export type ReadPace = {
  /** The next call on the socket belongs to this workspace. Earlier events do not delay it. */
  startCall: (workspaceId: string) => void;
  /** The head of the final answer is complete. */
  headRead: () => void;
  /** A piece of a body was passed on. `isPaused`: its reader asked to stop. */
  handedOn: (bytes: number, isPaused: boolean) => void;
  /**
   * The answer is complete, or has failed. The work of its receiver between these two calls is not part of the cost of
   * reading.
   */
  ending: () => void;
  ended: () => void;
};

export type ReadPaces = {
  /** Controls how this socket is read. Call it before an undici Client gets the socket. */
  pace: (socket: Socket) => ReadPace;
};

/**
 * Limits the time of the main thread that reading answers can cost. A provider can make each byte cost a hundred times
 * as much as usual (a stream of empty events, HTTP chunks of one byte, a thousand interim answers, endless header
 * fields), at the speed of the network. The excess over the ordinary cost is counted for the workspace that made the
 * call. Once it exceeds a tenth of the time, the sockets of that workspace are read later. An ordinary answer is never
 * in excess, nor is a large body, which is read at the pace of `bytePace`. Only the provider's next bytes wait, in the
 * kernel's buffer.
 *
 * undici calls `socket.read()` when the socket reports that it is readable, until the buffer is empty. This function
 * intercepts these reads: a read that has to wait returns null, and the socket reports again later.
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
      /** When the current piece was read; 0 if there is none. */
      let since = 0;
      let bodyBytes = 0;
      /** The part of this answer's cost that was already counted. */
      let answerBytes = 0;
      let turnMs = 0;
      let isHeadRead = false;
      let isHeadLong = false;
      /** The cost of the current piece so far. */
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
      /** Counts the time since the last piece was read. */
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
          // Only the beginning of an answer gets free time for arriving in small pieces.
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
          // Reading pauses until `resume` is called.
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
