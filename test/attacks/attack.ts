import { expect, test } from 'vitest';

/**
 * A black-box attack as a test. Prints `HELD` or `LEAK` with its name, and fails if something leaked.
 *
 * @param what One sentence: who does what.
 * @param run Attacks, and returns one sentence for each thing that the attacker got. Empty: the attack was held. It must
 * also prove that the attack was possible at all, for example that the same request works where it is allowed.
 */
export function attack(what: string, run: () => Promise<readonly string[]>): void {
  // oxlint-disable-next-line vitest/valid-title -- the title is the caller's
  test(what, { retry: 0 }, async () => {
    const leaks = await run();
    console.log(`${leaks.length === 0 ? 'HELD' : 'LEAK'}  ${[what, ...leaks].join('\n      ')}`);
    expect(leaks).toEqual([]);
  });
}
