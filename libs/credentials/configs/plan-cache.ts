import { LRUCache } from 'lru-cache';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';

export type PlanCache = {
  /** Returns the plan that is cached under the key, if any. null: this release cannot read the config. */
  find(key: string | object): Plan | null | undefined;
  /** `text`: the config as JSON, whose size determines the charge for the plan. */
  keep(key: string | object, text: string, plan: Plan | null): void;
};

/** The part of the memory budget that plans can take up. */
const share = 1 / 8;
const defaultBytesMax = 16_777_216;

/** A plan contains the value of its config and the compiled form. */
const valuesPerPlan = 2;

/**
 * Caches the plans of configs within a part of the process's memory budget, to which they are charged. The least recently
 * used ones are removed. Without a budget, the cache has a fixed size.
 */
export function createPlanCache(memory?: MemoryBudget): PlanCache {
  const lease = memory?.open('plans');
  const plans = new LRUCache<string | object, { plan: Plan | null }>({
    maxSize: memory === undefined ? defaultBytesMax : Math.floor(memory.stats().bytesMax * share),
  });
  return {
    find: (key) => plans.get(key)?.plan,
    keep(key, text, plan) {
      plans.set(key, { plan }, { size: planBytes(text) });
      lease?.become(plans.calculatedSize);
    },
  };
}

function planBytes(text: string): number {
  const limits = { depthMax: Number.POSITIVE_INFINITY, membersMax: Number.POSITIVE_INFINITY };
  const { textBytes, valueBytes } = measureJson(Buffer.from(text), limits);
  return textBytes + valuesPerPlan * valueBytes;
}
