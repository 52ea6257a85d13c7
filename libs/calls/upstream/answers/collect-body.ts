import type { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type { Flow } from '../egress/exchange.ts';
import type { Faults } from '../provider-faults.ts';
import { largeBytesMin } from './read-body.ts';

/** The block size for a large body of unknown length. */
const blockBytes = 1_048_576;

/**
 * Collects at most `bytesMax` of an answer's body within the memory of its call. A large body is copied together while
 * it arrives, because doing that at the end would block other calls (60 MiB: 50 ms). While there is no memory, the
 * provider's socket is not read. `push` and `expect` throw `upstream_response_too_large` if the body needs more than
 * the call can ever hold. A wait that is too long aborts the flow with `server_overloaded`.
 */
export class BodyCollector {
  readonly #memory: MemoryLease | undefined;
  readonly #faults: () => Faults;
  readonly #bytesMax: number;
  #flow: Flow | undefined;
  /** The body while it is one piece. Most answers stay that, and need no lists. */
  #only: Buffer | null = null;
  #chunks: Buffer[] | null = null;
  #blocks: Buffer<ArrayBuffer>[] | null = null;
  /** How many bytes of the last block are used. */
  #filledBytes = 0;
  #expectedBytes = 0;
  #bytes = 0;
  /** Memory holds both the pieces and, at the end, the whole body that is copied from them. */
  #copies = 2;
  /** Bytes of the body for which memory was acquired. */
  #asked = 0;
  #chargedBytes = 0;
  #owedBytes = 0;
  /** While it waits for memory. */
  #waiting: AbortController | undefined;

  constructor(options: { memory: MemoryLease | undefined; faults: () => Faults; bytesMax: number }) {
    this.#memory = options.memory;
    this.#faults = options.faults;
    this.#bytesMax = options.bytesMax;
  }

  /** `expectedBytes`: the length in the head. Memory for it is acquired before the first byte is read. */
  start(flow: Flow, expectedBytes: number): void {
    this.#flow = flow;
    this.#expectedBytes = expectedBytes;
    if (expectedBytes >= largeBytesMin) this.#copies = 1;
    this.#hold(expectedBytes);
  }

  push(chunk: Buffer): void {
    const isFirst = this.#bytes === 0;
    // Like for requests: an answer in one piece is copied, so that it does not retain other buffers in memory.
    if (!isFirst) countTransferred(chunk.length);
    this.#bytes += chunk.length;
    this.#hold(this.#bytes);
    const isLarge = this.#bytes >= largeBytesMin;
    if (isFirst && !isLarge) {
      this.#only = chunk;
      return;
    }
    this.#chunks ??= this.#only === null ? [] : [this.#only];
    this.#only = null;
    this.#chunks.push(chunk);
    if (!isLarge) return;
    for (const piece of this.#chunks) this.#fill(piece);
    this.#chunks.length = 0;
  }

  get sizeBytes(): number {
    return this.#bytes;
  }

  /** Returns the whole body in one piece. From now on it is counted once. */
  take(): Buffer {
    this.keep(Math.min(this.#chargedBytes, this.#bytes));
    if (this.#only !== null) return this.#only;
    const pieces = this.#takePieces();
    const [only] = pieces;
    return pieces.length === 1 && only ? only : Buffer.concat(pieces, this.#bytes);
  }

  /**
   * Returns a large body in pieces that can be moved into a thread, because their memory contains nothing else. It is
   * counted as before.
   */
  takeBlocks(): Uint8Array<ArrayBuffer>[] {
    return this.#takePieces() as Uint8Array<ArrayBuffer>[];
  }

  /** Sets the bytes that are counted for the body, because something else has replaced it. */
  keep(bytes: number): void {
    this.#memory?.give(this.#chargedBytes - bytes);
    this.#chargedBytes = bytes;
  }

  /** Call this when no part of it is needed any more. */
  drop(): void {
    this.#waiting?.abort();
    this.#takePieces();
    this.keep(0);
  }

  #hold(upTo: number): void {
    const memory = this.#memory;
    if (upTo > this.#bytesMax) throw this.#faults().tooLarge('a body', this.#bytesMax);
    if (memory === undefined || upTo <= this.#asked) return;
    const more = this.#copies * (upTo - this.#asked);
    const freeBytes = memory.leaseBytesMax - memory.usedBytes - this.#owedBytes;
    if (more > freeBytes) {
      throw this.#faults().tooLarge('a body', this.#asked + Math.floor(freeBytes / this.#copies));
    }
    this.#asked = upTo;
    if (this.#waiting === undefined && memory.tryCharge(more)) {
      this.#chargedBytes += more;
      return;
    }
    this.#owedBytes += more;
    if (this.#waiting === undefined) void this.#wait(memory);
  }

  async #wait(memory: MemoryLease): Promise<void> {
    this.#waiting = new AbortController();
    const { signal } = this.#waiting;
    this.#flow?.pause();
    try {
      while (this.#owedBytes > 0) {
        const more = this.#owedBytes;
        await memory.chargeWhenFree(more, signal);
        this.#owedBytes -= more;
        this.#chargedBytes += more;
        if (signal.aborted) return this.keep(0);
      }
      this.#waiting = undefined;
      this.#flow?.resume();
    } catch (error) {
      this.#flow?.abort(error as GatewayError);
    }
  }

  #fill(chunk: Buffer): void {
    const blocks = (this.#blocks ??= []);
    for (let from = 0; from < chunk.length;) {
      let block = blocks.at(-1);
      if (block === undefined || this.#filledBytes === block.length) {
        const isExpected = blocks.length === 0 && this.#expectedBytes > 0;
        block = Buffer.allocUnsafeSlow(isExpected ? this.#expectedBytes : blockBytes);
        blocks.push(block);
        this.#filledBytes = 0;
      }
      const copied = chunk.copy(block, this.#filledBytes, from);
      this.#filledBytes += copied;
      from += copied;
    }
  }

  /** Returns the collected pieces and forgets them. Only the used part of the last block is included. */
  #takePieces(): Buffer[] {
    const pieces: Buffer[] = this.#chunks ?? [];
    for (const block of this.#blocks ?? []) pieces.push(block);
    if (this.#blocks !== null) pieces.push((pieces.pop() as Buffer).subarray(0, this.#filledBytes));
    this.#only = null;
    this.#chunks = null;
    this.#blocks = null;
    return pieces;
  }
}
