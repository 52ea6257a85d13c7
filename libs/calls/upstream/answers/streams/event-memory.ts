import { measureJson } from '#libs/kernel/json/measure-json.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type { Faults } from '../../provider-faults.ts';
import { eventWorkMax } from '../read-body.ts';

/** Smaller events are not counted, because their memory is freed immediately. */
const countedBytesMin = 65_536;
/** A text takes two bytes per character if one of its characters is wide. */
const charCopies = 2;
/** The same as for whole answers (read-body.ts). */
const depthMax = 512;

/** The memory of a stream's large events: of the one that is not complete yet, and of the one that is parsed. */
export class EventMemory {
  readonly #lease: MemoryLease | undefined;
  readonly #faults: () => Faults;
  /** Bytes since the last complete event, and the bytes that are charged for them. */
  #pendingBytes = 0;
  #heldBytes = 0;

  constructor(lease: MemoryLease | undefined, faults: () => Faults) {
    this.#lease = lease;
    this.#faults = faults;
  }

  /** Counts the bytes of a large event that is not complete yet. */
  holdPending(bytes: number): void {
    this.#pendingBytes += bytes;
    const wanted = this.#pendingBytes < countedBytesMin ? 0 : charCopies * this.#pendingBytes;
    if (wanted === this.#heldBytes) return;
    if (wanted > this.#heldBytes) this.#lease?.charge(wanted - this.#heldBytes);
    else this.#lease?.give(this.#heldBytes - wanted);
    this.#heldBytes = wanted;
  }

  /** An event is complete. The bytes that are charged for it are returned with the next `holdPending`. */
  eventCompleted(): void {
    this.#pendingBytes = 0;
  }

  /** Returns the bytes of an event that will not be completed. */
  dropPending(): void {
    this.#lease?.give(this.#heldBytes);
    this.#heldBytes = 0;
  }

  /** Charges the memory for parsing an event and returns its bytes, which are given back afterwards. */
  chargeParsing(data: string): number {
    const bytes = data.length < countedBytesMin ? 0 : this.#parseCost(data);
    this.#lease?.charge(bytes);
    return bytes;
  }

  give(bytes: number): void {
    this.#lease?.give(bytes);
  }

  /** The memory for parsing a large event as JSON. Throws when the call can never have so much. */
  #parseCost(data: string): number {
    const limit = { depthMax, membersMax: Number.POSITIVE_INFINITY, workMax: eventWorkMax };
    const { excess, textBytes, valueBytes } = measureJson(Buffer.from(data), limit);
    if (excess === 'work') throw this.#faults().tooManyValues();
    if (excess !== null) throw this.#faults().invalid(`sent an event that is nested more than ${depthMax} levels deep`);
    const lease = this.#lease;
    const freeBytes = lease === undefined ? Number.POSITIVE_INFINITY : lease.leaseBytesMax - lease.usedBytes;
    if (textBytes + valueBytes > freeBytes) throw this.#faults().tooComplex(textBytes + valueBytes, freeBytes);
    return textBytes + valueBytes;
  }
}
