export type Waiter<Group, Item> = { readonly group: Group; readonly item: Item; readonly start: () => void };

/**
 * Waiters in groups that take turns, so that a group with many waiters does not hold up a group with few. The waiters of a
 * group are served in order. Joining, leaving and starting take constant time.
 */
export class WaitingGroups<Group, Item> {
  /** In the order of their turns. The waiters are in sets so that one in the middle can leave. */
  readonly #groups = new Map<Group, Set<Waiter<Group, Item>>>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  sizeOf(group: Group): number {
    return this.#groups.get(group)?.size ?? 0;
  }

  /** Resolves with true when the waiter is started, and with false when `signal` aborts first. */
  join(group: Group, item: Item, signal?: AbortSignal): Promise<boolean> {
    if (signal?.aborted === true) return Promise.resolve(false);
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const onAbort = (): void => {
      this.#leave(waiter);
      resolve(false);
    };
    const waiter: Waiter<Group, Item> = {
      group,
      item,
      start: () => {
        signal?.removeEventListener('abort', onAbort);
        resolve(true);
      },
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    const waiters = this.#groups.get(group);
    if (waiters === undefined) this.#groups.set(group, new Set([waiter]));
    else waiters.add(waiter);
    this.#size += 1;
    return promise;
  }

  /** The first waiter of each group, in the order of turns. */
  *firsts(): Generator<Waiter<Group, Item>> {
    for (const waiters of this.#groups.values()) yield waiters.values().next().value as Waiter<Group, Item>;
  }

  /** The first waiter of the next group whose first waiter can be served. */
  next(canServe: (waiter: Waiter<Group, Item>) => boolean): Waiter<Group, Item> | undefined {
    return this.firsts().find(canServe);
  }

  /** Starts a waiter. Its group has then had its turn. */
  start(waiter: Waiter<Group, Item>): void {
    const waiters = this.#leave(waiter);
    if (this.#groups.delete(waiter.group)) this.#groups.set(waiter.group, waiters);
    waiter.start();
  }

  #leave(waiter: Waiter<Group, Item>): Set<Waiter<Group, Item>> {
    const waiters = this.#groups.get(waiter.group) as Set<Waiter<Group, Item>>;
    waiters.delete(waiter);
    this.#size -= 1;
    if (waiters.size === 0) this.#groups.delete(waiter.group);
    return waiters;
  }
}
