import { getHeapStatistics } from 'node:v8';
import { GatewayError } from '../errors.ts';
import { WaitingGroups, type Waiter } from './waiting-groups.ts';

/**
 * The memory that a process can use for its callers at one time: for bodies, parsed values, answers, lines and results. Each
 * call or line has a lease, to which its bytes are charged. Together, the leases of a workspace can hold the workspace's
 * share.
 */
export type MemoryBudget = {
  /**
   * Opens an empty lease. `workspaceId` is null for calls without a workspace, which share one account. `waitMsMax`: how
   * long `chargeWhenFree` waits. With the default, a live caller gets an answer before it times out; batch lines can wait
   * longer.
   */
  open(workspaceId: string | null, waitMsMax?: number): MemoryLease;
  /** The maximum number of bytes that one lease can hold. */
  readonly leaseBytesMax: number;
  stats(): { heldBytes: number; bytesMax: number; waiting: number };
};

export type MemoryLease = {
  readonly leaseBytesMax: number;
  /** Bytes that were charged and not yet returned. */
  readonly usedBytes: number;
  /**
   * Charges more bytes. Throws GatewayError unavailable / `server_overloaded` with Retry-After when there is no room at the
   * moment.
   */
  charge(bytes: number): void;
  /** Like `charge`, but when there is no room it charges nothing and returns false. */
  tryCharge(bytes: number): boolean;
  /** Whether `tryCharge` would succeed now. */
  hasRoom(bytes: number): boolean;
  /**
   * Like `charge`, but waits for room. Throws the same error as `charge` after the lease's `waitMsMax`, or the reason of
   * `signal` if it aborts first.
   */
  chargeWhenFree(bytes: number, signal: AbortSignal): Promise<void>;
  /**
   * Holds at least `wanted` bytes (or its maximum) for later charges. Returns true when it does, with a promise if it has
   * to wait; false, reserving nothing, when `signal` aborts first.
   */
  reserve(wanted: number, signal: AbortSignal): boolean | Promise<boolean>;
  /** Returns some of the charged bytes. */
  give(bytes: number): void;
  /**
   * Sets how many bytes the lease holds, even beyond its share: the bytes already exist, and their size is known only now.
   */
  become(bytes: number): void;
  /** Returns all bytes. Later charges are ignored. */
  release(): void;
};

/**
 * A workspace can hold at most this many times the free bytes, so that some are always left for others: a single workspace
 * gets three quarters of the budget, and two get three sevenths each. (These are dynamic thresholds, as network switches use
 * to share their buffers: Choudhury and Hahne, 1998.) Small leases can take more of the free bytes, and the last eighth is
 * reserved for them, so that calls with images do not block calls that need very little.
 */
const shareOfFree = 3;
const smallShareOfFree = 7;
export const smallBytesMax = 65_536;
const largeShare = 7 / 8;

const liveWaitMsMax = 30_000;

/** When there are this many accounts, those that hold no bytes are removed. */
const accountsMax = 10_000;

type Account = { heldBytes: number };
/** `take` charges or reserves the bytes that a lease is waiting for. */
type Claim = { lease: Lease; bytes: number; take: () => void; number: number };

/**
 * `graceMs`: after this time, the oldest waiter gets the bytes that it requested even beyond the budget, one lease at a
 * time. Otherwise, answers that each hold a part and wait for more could wait for each other forever, and small leases could
 * block a large one. So the process holds at most the budget plus one lease.
 */
export function createMemoryBudget(bytesMax: number, { graceMs = 1_000 }: { graceMs?: number } = {}): MemoryBudget {
  return new Budget(bytesMax, graceMs);
}

/**
 * The default budget: a third of V8's heap limit. This is safe even if the whole budget and one more lease consist of parsed
 * values.
 */
export function defaultMemoryBytesMax(): number {
  return Math.floor(getHeapStatistics().heap_size_limit / 3);
}

// These are classes because a lease is opened for every live call, and closures would have to be created for each one.
class Budget implements MemoryBudget {
  readonly bytesMax: number;
  readonly leaseBytesMax: number;
  readonly #graceMs: number;
  readonly #accounts = new Map<string | null, Account>();
  /** Workspaces take turns. */
  readonly #waiting = new WaitingGroups<Account, Claim>();
  #claims = 0;
  #heldBytes = 0;
  /** The one lease that is allowed to exceed the budget. */
  #beyond: Lease | null = null;
  #grace: NodeJS.Timeout | undefined;

  constructor(bytesMax: number, graceMs: number) {
    this.bytesMax = bytesMax;
    this.leaseBytesMax = Math.floor((bytesMax * shareOfFree) / (shareOfFree + 1));
    this.#graceMs = graceMs;
  }

  open(workspaceId: string | null, waitMsMax = liveWaitMsMax): MemoryLease {
    let account = this.#accounts.get(workspaceId);
    if (account === undefined) {
      if (this.#accounts.size >= accountsMax) this.#forgetIdle();
      account = { heldBytes: 0 };
      this.#accounts.set(workspaceId, account);
    }
    return new Lease(this, account, waitMsMax);
  }

  stats() {
    return { heldBytes: this.#heldBytes, bytesMax: this.bytesMax, waiting: this.#waiting.size };
  }

  #forgetIdle(): void {
    for (const [id, account] of this.#accounts) {
      if (account.heldBytes === 0 && !this.isAwaited(account)) this.#accounts.delete(id);
    }
  }

  /** Whether a lease can hold `more` bytes. */
  fits(lease: Lease, more: number): boolean {
    const own = lease.heldBytes + more;
    if (lease === this.#beyond) return own <= this.leaseBytesMax;
    const isSmall = own <= smallBytesMax;
    // The lease beyond the budget does not count, so that small calls continue to run next to it.
    const held = this.#heldBytes - (this.#beyond?.heldBytes ?? 0) + more;
    if (held > (isSmall ? this.bytesMax : this.bytesMax * largeShare)) return false;
    const ofAccount = lease.account.heldBytes - (this.#beyond?.account === lease.account ? this.#beyond.heldBytes : 0);
    return ofAccount + more <= (isSmall ? smallShareOfFree : shareOfFree) * (this.bytesMax - held);
  }

  /** Records a change in the number of bytes that a lease holds. */
  count(lease: Lease, change: number): void {
    this.#heldBytes += change;
    lease.account.heldBytes += change;
    if (change >= 0) return;
    if (lease === this.#beyond && lease.heldBytes === 0) this.#beyond = null;
    if (this.#waiting.size > 0) this.#admit();
  }

  isAwaited(account: Account): boolean {
    return this.#waiting.sizeOf(account) > 0;
  }

  /** Resolves with true when the bytes are taken, and with false when `signal` aborts first. */
  async wait(lease: Lease, bytes: number, take: () => void, signal: AbortSignal): Promise<boolean> {
    this.#claims += 1;
    const taken = this.#waiting.join(lease.account, { lease, bytes, take, number: this.#claims }, signal);
    this.#watchOldest();
    const isTaken = await taken;
    if (this.#waiting.size === 0) {
      clearTimeout(this.#grace);
      this.#grace = undefined;
    }
    return isTaken;
  }

  #admit(): void {
    const canTake = ({ item }: Waiter<Account, Claim>): boolean => this.fits(item.lease, item.bytes);
    for (let next = this.#waiting.next(canTake); next !== undefined; next = this.#waiting.next(canTake)) {
      this.#start(next);
    }
  }

  #start(waiter: Waiter<Account, Claim>): void {
    this.#waiting.start(waiter);
    waiter.item.lease.takeClaimed(waiter.item.take);
  }

  #watchOldest(): void {
    this.#grace ??= setTimeout(() => {
      this.#grace = undefined;
      const [oldest] = [...this.#waiting.firsts()].toSorted((one, other) => one.item.number - other.item.number);
      if (oldest === undefined) return;
      if (this.#beyond === null) {
        const { lease } = oldest.item;
        this.#beyond = lease;
        this.#start(oldest);
        // The lease was released while it waited, so it will never return anything.
        if (lease.heldBytes === 0) this.#beyond = null;
      }
      if (this.#waiting.size > 0) this.#watchOldest();
    }, this.#graceMs);
  }
}

class Lease implements MemoryLease {
  readonly account: Account;
  readonly #budget: Budget;
  readonly #waitMsMax: number;
  usedBytes = 0;
  #reservedBytes = 0;
  #isReleased = false;
  /** The larger of the used and the reserved bytes. */
  heldBytes = 0;

  constructor(budget: Budget, account: Account, waitMsMax: number) {
    this.#budget = budget;
    this.account = account;
    this.#waitMsMax = waitMsMax;
  }

  get leaseBytesMax(): number {
    return this.#budget.leaseBytesMax;
  }

  hasRoom(bytes: number): boolean {
    const more = this.usedBytes + bytes - this.heldBytes;
    return more <= 0 || this.#isReleased || this.#budget.fits(this, more);
  }

  tryCharge(bytes: number): boolean {
    if (this.#isReleased) return true;
    if (!this.hasRoom(bytes)) return false;
    this.usedBytes += bytes;
    this.#hold();
    return true;
  }

  charge(bytes: number): void {
    if (!this.tryCharge(bytes)) throw overloaded();
  }

  async chargeWhenFree(bytes: number, signal: AbortSignal): Promise<void> {
    if (this.tryCharge(bytes)) return;
    signal.throwIfAborted();
    if (this.usedBytes + bytes > this.leaseBytesMax) throw overloaded(); // it would never fit
    const given = new AbortController();
    const giveUp = (): void => given.abort();
    const late = setTimeout(giveUp, this.#waitMsMax);
    signal.addEventListener('abort', giveUp, { once: true });
    const more = this.usedBytes + bytes - this.heldBytes;
    const take = (): void => {
      this.usedBytes += bytes;
    };
    const isThere = await this.#budget.wait(this, more, take, given.signal);
    clearTimeout(late);
    signal.removeEventListener('abort', giveUp);
    if (isThere) return;
    signal.throwIfAborted();
    throw overloaded();
  }

  reserve(wanted: number, signal: AbortSignal): boolean | Promise<boolean> {
    if (signal.aborted) return false;
    const bytes = Math.min(wanted, this.leaseBytesMax);
    const more = bytes - this.heldBytes;
    const take = (): void => {
      this.#reservedBytes = bytes;
    };
    // New requests do not overtake waiting ones.
    if (more > 0 && (this.#budget.isAwaited(this.account) || !this.#budget.fits(this, more))) {
      return this.#budget.wait(this, more, take, signal);
    }
    take();
    this.#hold();
    return true;
  }

  give(bytes: number): void {
    if (this.#isReleased) return;
    this.usedBytes -= bytes;
    this.#hold();
  }

  become(bytes: number): void {
    if (this.#isReleased) return;
    this.usedBytes = bytes;
    this.#reservedBytes = 0;
    this.#hold();
  }

  release(): void {
    this.become(0);
    this.#isReleased = true;
  }

  /** The bytes that it was waiting for are available. */
  takeClaimed(take: () => void): void {
    if (this.#isReleased) return;
    take();
    this.#hold();
  }

  #hold(): void {
    const held = this.usedBytes > this.#reservedBytes ? this.usedBytes : this.#reservedBytes;
    const change = held - this.heldBytes;
    if (change === 0) return;
    this.heldBytes = held;
    this.#budget.count(this, change);
  }
}

function overloaded(): GatewayError {
  const message = 'The gateway does not have enough memory for this call. Try again shortly.';
  return new GatewayError('unavailable', 'server_overloaded', message, { retryAfterMs: 1_000 });
}
