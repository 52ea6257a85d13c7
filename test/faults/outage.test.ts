import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Fault } from './plan-round.ts';
import { startRig, type Rig } from './rig/start-rig.ts';
import { outageEnvironment, runOutageRound } from './run-outage-round.ts';

// A worker is given up after 11 s without a sign of life, and only one that has died. These strikes last longer, and the
// calls last longer than the strikes. `npm run test:faults` has them in full size.

let rig: Rig;
beforeAll(async () => {
  rig = await startRig(outageEnvironment);
});
afterAll(() => rig.stop({ keepFolder: false }));

test.each<[string, number, Fault]>([
  ['Postgres hangs for 14 s', 17_000, { kind: 'hang_postgres', forMs: 14_000 }],
  ['Postgres is down for 14 s', 19_000, { kind: 'kill_postgres', downMs: 14_000 }],
  ['the clock of the database is set a minute ahead', 6_000, { kind: 'move_clock', byMs: 60_000 }],
])('no line is called twice when %s', { timeout: 150_000 }, async (_what, callMs, fault) => {
  // All of these calls begin at once: a limit starts at 32, and a worker without a free core does not raise it.
  expect(await runOutageRound(rig, { lines: 30, callMs }, fault)).toEqual([]);
});
