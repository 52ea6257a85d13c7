import { chmod, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { allAttacks } from '#test/abuse/all-attacks.ts';
import type { Attack } from '#test/abuse/attack.ts';
import { judge } from '#test/abuse/judge.ts';
import { runAttack, type Arena } from '#test/abuse/run-attack.ts';
import { startArena } from '#test/abuse/start-arena.ts';
import { createCleanup } from '#test/bench/stack.ts';
import { createTestDatabase } from '#test/postgres.ts';

// The short part of `npm run test:abuse`: the attacks that end soon, small, and without checks of times, which only a
// quiet machine can give. `npm run test:abuse -- --only <name>` runs one of them in full.
const names = [
  'thirty-bodies-of-objects',
  'answers-of-objects',
  'clients-that-read-nothing',
  'aborted-calls-to-many-hosts',
  'three-hanging-batches',
];
const sizes = { aloneSeconds: 1, besideSeconds: 4, perSecond: 20, patienceMs: 30_000, isShort: true };

const attacks = names.map((name) => allAttacks.find((attack) => attack.name === name) as Attack);
const cleanup = createCleanup();
let arena: Arena;

beforeAll(async () => {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-abuse-'));
  await chmod(folder, 0o711);
  cleanup.add(() => rm(folder, { recursive: true, force: true }));
  arena = await startArena(folder, () => createTestDatabase(), cleanup);
});
afterAll(() => cleanup.run());

test.each(attacks)(
  '$name: no call of another workspace fails, no process ends, and each stays under a gibibyte',
  { timeout: 180_000 },
  async (attack) => {
    const figures = await runAttack(attack, arena, sizes, () => {});
    if ('missing' in figures) return;
    expect(judge(figures, { withTimes: false }), `the attack met: ${figures.outcome}`).toEqual([]);
  },
);
