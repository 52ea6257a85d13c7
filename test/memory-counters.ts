import { newCounter, renewLease, type Counter } from '#libs/limits/counter.ts';
import type { CounterName, CounterStore } from '#libs/limits/counter-store.ts';

/** Counters in memory, and the list of those that each transaction renewed. */
export function createMemoryCounters(): { store: CounterStore; renewed: CounterName[][] } {
  const counters = new Map<string, Counter>();
  const renewed: CounterName[][] = [];
  const store: CounterStore = {
    renew: async (renewals) => {
      renewed.push(renewals.map(({ name }) => name));
      return renewals.map(({ name, terms, request }) => {
        const result = renewLease(counters.get(name.id) ?? newCounter(0, 0), terms, request, Date.now());
        if (result === null) return 'stale';
        counters.set(name.id, result.counter);
        return result;
      });
    },
  };
  return { store, renewed };
}
