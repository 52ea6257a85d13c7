import type { Occasion } from './faults.ts';
import { mixHash } from './model/hash.ts';

/**
 * Decides, call by call, whether a fault strikes. Counts the calls of each prompt for the occasions that need it;
 * of more than `promptsMax` prompts the oldest are forgotten and begin again.
 */
export function createAttemptCounter({ promptsMax }: { promptsMax: number }) {
  const calls = new Map<number, number>();
  const count = (prompt: number): number => {
    const attempt = (calls.get(prompt) ?? 0) + 1;
    calls.delete(prompt);
    if (calls.size >= promptsMax) {
      const oldest = calls.keys().next();
      if (oldest.done !== true) calls.delete(oldest.value);
    }
    calls.set(prompt, attempt);
    return attempt;
  };
  return {
    /** The number of this call of the prompt, from 1, when the fault strikes; undefined when the call goes well. */
    strike(occasion: Occasion, prompt: number): number | undefined {
      switch (occasion.type) {
        case 'always':
          return 1;
        case 'first': {
          const attempt = count(prompt);
          return attempt <= occasion.attempts ? attempt : undefined;
        }
        case 'flaky': {
          // Odd calls are drawn again from prompt and number; an even one succeeds, whatever the one before it did.
          const attempt = count(prompt);
          return attempt % 2 === 1 && draw(prompt, attempt) < occasion.percent ? attempt : undefined;
        }
        case 'storm': {
          const attempt = count(prompt);
          return draw(prompt, attempt) < occasion.percent ? attempt : undefined;
        }
      }
    },
    reset: () => calls.clear(),
  };
}

/** 0 to 99. */
function draw(prompt: number, attempt: number): number {
  return mixHash(prompt, attempt) % 100;
}
