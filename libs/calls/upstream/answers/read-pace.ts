import type { Socket } from 'node:net';
import { errors } from 'undici';
import { unpacedBytesMax, type BytePace } from '#libs/kernel/sharing/byte-pace.ts';
import { ExcessLane } from './excess-lane.ts';

/** The maximum cost of reading a piece of an ordinary answer: a fixed time, and a time for each byte of a body. */
const readMs = 0.05;
const byteMs = 5e-6;
/** After this much of one turn of the event loop, other tasks run. */
const turnMsMax = 2;
/**
 * How much is read in one step for a workspace that is in excess. For others, everything that has arrived is read, 64
 * KiB.
 */
const sliceBytes = 4_096;
/**
 * The maximum size of a head, and of the interim answers since the previous one. undici's own limit counts only the
 * characters of names and values, so it allows 8,000 headers of a character each. They cost 60 ms and are moved by every
 * collection of the young generation while their socket waits. Real heads have less than 8 KiB.
 */
export const headBytesMax = 16_384;
/** How much of a head is read in one step. One step contains the whole head of an ordinary answer. */
const headSliceBytes = 4_096;
const lanesMax = 1_000;

/**
 * Limits the time of the main thread that reading answers can cost. A provider can make each byte cost a hundred times
 * as much as usual (a stream of empty events, HTTP chunks of one byte, a thousand interim answers, endless header
 * fields), at the speed of the network. The excess over the ordinary cost is counted for the workspace that made the
 * call. Once it exceeds a tenth of the time, the sockets of that workspace are read later. An ordinary answer is never
 * in excess, nor is a large body, which is read at the pace of `bytePace`. Only the provider's next bytes wait, in the
 * kernel's buffer.
 */
export class ReadPaces {
  readonly now: () => number;
  readonly bytePace: BytePace | null;
  readonly #lanes = new Map<string, ExcessLane>();

  constructor(now: () => number = () => performance.now(), bytePace: BytePace | null = null) {
    this.now = now;
    this.bytePace = bytePace;
  }

  /** Controls how this socket is read. Call it before an undici Client gets the socket. */
  pace(socket: Socket): ReadPace {
    return new ReadPace(this, socket);
  }

  findLane(workspaceId: string): ExcessLane | undefined {
    return this.#lanes.size === 0 ? undefined : this.#lanes.get(workspaceId);
  }

  openLane(workspaceId: string): ExcessLane {
    let lane = this.#lanes.get(workspaceId);
    if (lane === undefined) {
      if (this.#lanes.size >= lanesMax) this.#forgetPaid(this.now());
      lane = new ExcessLane();
      this.#lanes.set(workspaceId, lane);
    }
    return lane;
  }

  #forgetPaid(at: number): void {
    for (const [id, { paidAtMs }] of this.#lanes) if (paidAtMs <= at) this.#lanes.delete(id);
  }
}

/**
 * Prevents one socket from using all of the main thread's time.
 *
 * undici calls `socket.read()` when the socket reports that it is readable, until the buffer is empty. This class
 * intercepts these reads: a read that has to wait returns null, and the socket reports again later.
 */
export class ReadPace {
  readonly #paces: ReadPaces;
  readonly #socket: Socket;
  readonly #readNow: (size?: number) => Buffer | null;
  #workspace = '';
  #lane: ExcessLane | undefined;
  /** When the current piece was read; 0 if there is none. */
  #since = 0;
  #bodyBytes = 0;
  /** The part of this answer's cost that was already counted. */
  #answerBytes = 0;
  #turnMs = 0;
  #isHeadRead = false;
  #headBytes = 0;
  /** The cost of the current piece so far. */
  #freeMs = readMs;
  /** An answer ended within a piece, and not because its socket closed. */
  #isReadingOn = false;
  #isHeld = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(paces: ReadPaces, socket: Socket) {
    this.#paces = paces;
    this.#socket = socket;
    this.#readNow = socket.read.bind(socket);
    socket.read = (size?: number): Buffer | null => this.#read(size);
  }

  /** The next call on the socket belongs to this workspace. Earlier events do not delay it. */
  startCall(workspaceId: string): void {
    this.#workspace = workspaceId;
    this.#lane = this.#paces.findLane(workspaceId);
    this.#since = 0;
    this.#turnMs = 0;
    this.#answerBytes = 0;
    this.#isHeadRead = false;
    this.#headBytes = 0;
    if (!this.#isHeld) return;
    clearTimeout(this.#timer);
    this.#release();
  }

  /** The head of the final answer is complete. */
  headRead(): void {
    this.#isHeadRead = true;
  }

  /** The head of an interim answer is complete. */
  interimHeadRead(): void {
    this.#headBytes = 0;
  }

  /** A piece of a body was passed on. `isPaused`: its reader asked to stop, so reading pauses until `resume` is called. */
  handedOn(bytes: number, isPaused: boolean): void {
    this.#bodyBytes += bytes;
    if (isPaused && this.#since !== 0) this.#settle(this.#paces.now());
  }

  /**
   * The answer is complete, or has failed. The work of its receiver between this call and `ended` is not part of the
   * cost of reading.
   */
  ending(): void {
    this.#isReadingOn = this.#since !== 0;
    if (this.#isReadingOn) this.#settle(this.#paces.now());
  }

  ended(): void {
    if (this.#isReadingOn && !this.#isHeld) this.#since = this.#paces.now();
  }

  #read(size: number | undefined): Buffer | null {
    // undici reads on when it has closed the socket, and parses all that has arrived.
    if (this.#isHeld || this.#socket.destroyed) return null;
    // Node calls read(0) to receive more data, and ignores the result. A piece returned here would be lost.
    if (size === 0) return this.#readNow(0);
    const at = this.#paces.now();
    if (this.#since !== 0) this.#settle(at);
    if (this.#isHeld) return null;
    // Another socket of the workspace may have been the first.
    const lane = (this.#lane ??= this.#paces.findLane(this.#workspace));
    const isInExcess = lane?.isInExcess(at) === true;
    if (isInExcess && lane.isTurnOver()) {
      this.#holdForTurn(lane);
      return null;
    }
    if (!this.#isHeadRead && this.#headBytes >= headBytesMax) {
      this.#socket.destroy(new errors.HeadersOverflowError());
      return null;
    }
    const sizeMax = this.#pieceBytesMax(isInExcess);
    const isCut = this.#socket.readableLength >= sizeMax;
    const piece = this.#readNow(isCut ? sizeMax : size);
    if (piece !== null) {
      this.#since = at;
      // Only the beginning of an answer gets free time for arriving in small pieces.
      const isLater = this.#isHeadRead ? isCut : this.#headBytes > 0;
      this.#freeMs = isLater ? 0 : readMs;
      if (!this.#isHeadRead) this.#headBytes += piece.length;
    }
    return piece;
  }

  #pieceBytesMax(isInExcess: boolean): number {
    if (!this.#isHeadRead) return headSliceBytes;
    return isInExcess ? sliceBytes : Number.POSITIVE_INFINITY;
  }

  /** Counts the time since the last piece was read, and decides when the next one is read. */
  #settle(at: number): void {
    const spentMs = at - this.#since;
    this.#since = 0;
    this.#turnMs += spentMs;
    const waitMs = this.#countPiece(at, spentMs);
    const lane = this.#lane;
    if (waitMs > 0) {
      this.#isHeld = true;
      this.#timer = setTimeout(this.#release, waitMs).unref();
    } else if (lane?.isInExcess(at) === true) {
      lane.spendTurn(spentMs);
      if (lane.isTurnOver()) this.#holdForTurn(lane);
    } else if (this.#turnMs >= turnMsMax) {
      this.#isHeld = true;
      setImmediate(this.#release);
    }
  }

  /** Counts bytes and excess of a piece. Returns how long the workspace has to wait for them. */
  #countPiece(at: number, spentMs: number): number {
    const bytes = this.#bodyBytes;
    this.#bodyBytes = 0;
    this.#answerBytes += bytes;
    const isLarge = this.#answerBytes > unpacedBytesMax;
    const bodyWaitMs = isLarge ? (this.#paces.bytePace?.spend(this.#workspace, bytes) ?? 0) : 0;
    const excessMs = spentMs - this.#freeMs - bytes * byteMs;
    if (excessMs <= 0) return bodyWaitMs;
    this.#lane ??= this.#paces.openLane(this.#workspace);
    return Math.max(bodyWaitMs, this.#lane.addExcess(at, excessMs));
  }

  #holdForTurn(lane: ExcessLane): void {
    this.#isHeld = true;
    lane.waitForTurn(this.#release);
  }

  readonly #release = (): void => {
    this.#isHeld = false;
    this.#turnMs = 0;
    if (!this.#socket.destroyed) this.#socket.emit('readable');
  };
}
