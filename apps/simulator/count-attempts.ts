import type { Occasion } from './faults/faults.ts';
import { mixHash } from './model/hash.ts';

/**
 * Decides for each call whether a fault happens. Counts the calls of each prompt if that is needed. Beyond `promptsMax`
 * prompts, the oldest are forgotten and start again.
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
    /** The number of this call of the prompt, from 1, if the fault happens; undefined if the call succeeds. */
    strike(occasion: Occasion, prompt: number): number | undefined {
      switch (occasion.type) {
        case 'always':
          return 1;
        case 'first': {
          const attempt = count(prompt);
          return attempt <= occasion.attempts ? attempt : undefined;
        }
        case 'flaky': {
          // Odd calls are drawn again from prompt and number; even ones always succeed.
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
