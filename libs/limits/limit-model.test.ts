import fc from 'fast-check';
import { expect, test } from 'vitest';
import { amountToNumber, formatAmount, wholeAmount, type Amount } from '#libs/kernel/amount.ts';
import { leaseMs, newCounter, renewLease, type Counter, type LeaseRequest, type LimitTerms } from './counter.ts';
import { LocalCounter, type Draw } from './local-counter.ts';

// Processes that share one counter, with every event that can happen between them: requests and answers that are lost
// or late, processes that are killed, and time that passes.

const limit = 8;

type Process = {
  local: LocalCounter;
  open: { draw: Draw; period: number }[];
  /** The request on its way to the database; `answer` is on its way back. */
  asked: LeaseRequest | null;
  answer: ReturnType<typeof renewLease> | undefined;
};

class World {
  nowMs = 1_000_000;
  counter: Counter = newCounter(0, 0);
  processes: Process[] = [];
  /** Requests that were given up, and can still arrive. */
  late: LeaseRequest[] = [];
  made = 0;
  /** The use of calls whose answers were lost. */
  unconfirmed = 0n;
  /** The actual use of calls, by the period that they were drawn in. */
  spent = new Map<number, Amount>();
  readonly terms: LimitTerms;
  readonly periodMs: number;

  constructor(terms: LimitTerms, processes: number, periodMs: number) {
    this.terms = terms;
    this.periodMs = periodMs;
    for (let index = 0; index < processes; index += 1) this.processes.push(this.start());
  }

  start(): Process {
    this.made += 1;
    return { local: new LocalCounter(`p${this.made}`), open: [], asked: null, answer: undefined };
  }

  draw(process: Process, amount: number): boolean {
    const draw = process.local.draw(wholeAmount(amount), this.nowMs);
    if (draw === null) return false;
    // From the database's point of view: a lease belongs to the period in which it was granted.
    process.open.push({ draw, period: this.counter.periodStartMs });
    this.spend(this.counter.periodStartMs, draw.amount);
    return true;
  }

  /** Everything that is drawn can be used, so it counts immediately. A call that used less returns the rest. */
  spend(period: number, amount: Amount): void {
    const sum = (this.spent.get(period) ?? 0n) + amount;
    this.spent.set(period, sum);
    const { max } = this.terms;
    if (sum > max) throw new Error(`${formatAmount(sum)} of ${formatAmount(max)} in ${period}`);
  }

  settle(process: Process, part: number): void {
    const call = process.open.shift();
    if (call === undefined) return;
    const used = wholeAmount(Math.floor((amountToNumber(call.draw.amount) * part) / 4));
    this.spend(call.period, used - call.draw.amount);
    // Every fourth part belongs to a call whose answer was lost.
    process.local.settle(call.draw, used, false, part === 3 ? used : 0n);
    if (part === 3 && call.period === this.counter.periodStartMs) this.unconfirmed += used;
  }

  ask(process: Process, waiting: number): void {
    if (process.asked !== null || process.answer !== undefined) return;
    process.asked = process.local.ask(waiting === 0 ? [] : [wholeAmount(waiting)], this.nowMs);
  }

  apply(request: LeaseRequest): ReturnType<typeof renewLease> {
    const renewed = renewLease(this.counter, this.terms, request, this.nowMs);
    if (renewed !== null) this.counter = renewed.counter;
    // The same rule as the constraint of the table: a negative amount would be a credit for all processes.
    const { used, assumed, unconfirmed, unpriced, leases } = this.counter;
    if (unconfirmed > used) throw new Error('more is unconfirmed than used');
    const amounts = [used, assumed, unconfirmed, ...Object.values(leases).map(({ amount }) => amount)];
    if (unpriced < 0 || amounts.some((amount) => amount < 0n)) throw new Error('a counter is below 0');
    return renewed;
  }

  reach(process: Process): void {
    if (process.asked === null) return;
    process.answer = this.apply(process.asked);
    process.asked = null;
  }

  answer(process: Process): void {
    if (process.answer === undefined) return;
    if (process.answer === null) process.local.lose();
    else process.local.take(process.answer.grant);
    process.answer = undefined;
  }

  /** The process gives up waiting. Its request can still arrive later. */
  giveUp(process: Process): void {
    if (process.asked === null && process.answer === undefined) return;
    if (process.asked !== null) this.late.push(process.asked);
    process.asked = null;
    process.answer = undefined;
    process.local.lose();
  }

  sync(process: Process, waiting: number): void {
    this.giveUp(process);
    this.ask(process, waiting);
    this.reach(process);
    this.answer(process);
  }
}

type Step = { do: string; process: number; number: number };
const actions =
  'draw draw draw draw settle settle ask reach answer sync sync sync giveUp late tick rest wait kill'.split(' ');
const chooseStep = (...names: string[]) =>
  fc.record({ do: fc.constantFrom(...names), process: fc.nat(3), number: fc.nat(limit) });
const step = chooseStep(...actions);
/**
 * This includes processes that hang for so long that the database forgets them. A report just before that, whose answer
 * they never received, counts twice: too much, never too little.
 */
const stepOrHang = chooseStep(...actions, 'hang');

function run(world: World, steps: readonly Step[], kills: boolean): void {
  for (const { do: what, process: index, number } of steps) {
    const process = world.processes[index % world.processes.length];
    if (process === undefined) continue;
    if (what === 'draw') world.draw(process, 1 + (number % 4));
    else if (what === 'settle') world.settle(process, number % 5);
    else if (what === 'ask') world.ask(process, number);
    else if (what === 'reach') world.reach(process);
    else if (what === 'answer') world.answer(process);
    else if (what === 'sync') world.sync(process, number);
    else if (what === 'giveUp') world.giveUp(process);
    else if (what === 'late') world.late.splice(0, 1).map((request) => world.apply(request));
    else if (what === 'tick') for (const { local } of world.processes) local.tick();
    else if (what === 'rest') for (let round = 0; round < 15; round += 1) process.local.tick();
    else if (what === 'wait') world.nowMs += number * (world.periodMs > 0 ? world.periodMs / 8 : 1_000);
    else if (what === 'hang') world.nowMs += number % 2 === 0 ? 400_000 : 4_000_000;
    else if (kills) world.processes[index % world.processes.length] = world.start();
  }
}

/** All calls end, all answers arrive, and the free amount is returned. */
function quieten(world: World): void {
  for (const process of world.processes) {
    while (process.open.length > 0) world.settle(process, 4);
    for (let round = 0; round < 30; round += 1) process.local.tick();
    for (let round = 0; round < 3; round += 1) world.sync(process, 0);
  }
}

const never: LimitTerms = { max: wholeAmount(limit), reset: { every: 'never' }, alertAt: null };

test('whatever happens between processes, no more is drawn than the limit', () => {
  fc.assert(
    fc.property(
      fc.array(stepOrHang, { maxLength: 100, size: 'max' }),
      fc.integer({ min: 1, max: 4 }),
      (steps, processes) => {
        run(new World(never, processes, 0), steps, true);
      },
    ),
    { numRuns: 1_000 },
  );
});

test('nor in any of its periods', () => {
  const terms: LimitTerms = { ...never, reset: { every: 'rpm' } };
  fc.assert(
    fc.property(fc.array(step, { maxLength: 100, size: 'max' }), fc.integer({ min: 1, max: 4 }), (steps, processes) => {
      run(new World(terms, processes, 60_000), steps, true);
    }),
    { numRuns: 1_000 },
  );
});

test('what calls have not used can be drawn to the last unit when all is quiet', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 100, size: 'max' }), fc.integer({ min: 1, max: 4 }), (steps, processes) => {
      const world = new World(never, processes, 0);
      run(world, steps, false);
      quieten(world);
      const left = amountToNumber(never.max - (world.spent.get(0) ?? 0n));
      expect(amountToNumber(world.counter.used)).toBe(limit - left);
      expect(world.counter.unconfirmed).toBe(world.unconfirmed);
      const fresh = world.start();
      world.sync(fresh, left);
      expect(left === 0 || world.draw(fresh, left)).toBe(true);
    }),
    { numRuns: 1_000 },
  );
});

test('what a killed process held is not reserved any more when its lease has expired, but counts as used', () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 100, size: 'max' }), (steps) => {
      const world = new World(never, 3, 0);
      run(world, steps, true);
      quieten(world);
      world.late = [];
      world.nowMs += leaseMs;
      const fresh = world.start();
      world.sync(fresh, 0);
      const left = amountToNumber(never.max - world.counter.used);
      world.sync(fresh, left);
      expect(left <= 0 || world.draw(fresh, left)).toBe(true);
      // All counted use is real, or was held by a process that no longer exists.
      expect(world.counter.used - world.counter.assumed <= (world.spent.get(0) ?? 0n)).toBe(true);
    }),
    { numRuns: 1_000 },
  );
});

const weekly: LimitTerms = { ...never, max: wholeAmount(1_000), reset: { every: 'week' } };

/** Uses `amount` of a lease that it requests, and reports it. */
function use(world: World, process: Process, amount: number): void {
  world.sync(process, amount);
  world.draw(process, amount);
  world.settle(process, 4);
  world.sync(process, 0);
}

test.each([
  ['an hour and a half while it held a lease', 90 * 60_000, 3],
  ['six minutes without one', 6 * 60_000, 0],
])('what a process reported before it hung for %s is not counted again', (_name, hungMs, held) => {
  const world = new World(weekly, 2, 0);
  const [hung, other] = world.processes as [Process, Process];
  use(world, hung, 400);
  for (let round = 0; round < 30; round += 1) hung.local.tick();
  world.sync(hung, held);
  world.nowMs += hungMs;
  world.sync(other, 0);
  const before = world.counter.used;
  use(world, hung, 10);
  expect(world.counter.used - before).toBe(wholeAmount(10));
});

test('a report that the database has lost, as by a failover, is counted when it comes again', () => {
  const world = new World(weekly, 1, 0);
  const [process] = world.processes as [Process];
  const lost = world.counter;
  use(world, process, 400);
  world.counter = lost;
  world.nowMs += 20_000;
  use(world, process, 10);
  expect(amountToNumber(world.counter.used)).toBe(410);
});

test('a database whose clock went an hour ahead and came back does not keep a rate used up for that hour', () => {
  const world = new World({ ...never, reset: { every: 'rpm' } }, 2, 60_000);
  const [one, other] = world.processes as [Process, Process];
  world.nowMs += 3_600_000;
  use(world, one, 1);
  world.nowMs -= 3_600_000;
  use(world, one, limit - 1);
  world.nowMs += 60_000;
  world.sync(other, limit);
  expect(world.draw(other, limit)).toBe(true);
});

test('what a process keeps for the calls to come is whole, as what calls use is', () => {
  const world = new World(weekly, 1, 0);
  const [process] = world.processes as [Process];
  for (const amount of [101, 71, 33]) {
    world.sync(process, 300);
    world.draw(process, amount);
    process.local.tick();
    world.settle(process, 0);
  }
  expect(process.local.ask([], world.nowMs).hold).toBe(wholeAmount(202));
});

test('at the end of a limit, processes with too little for a call leave it to one of them', () => {
  const world = new World({ ...never, max: wholeAmount(120) }, 4, 0);
  const call = 10;
  for (const process of world.processes) {
    world.sync(process, 3 * call);
    for (let calls = 0; calls < 3; calls += 1) expect(world.draw(process, call)).toBe(true);
  }
  // Each call returns 3, so what is left covers four more calls, but no process has enough for one.
  for (const process of world.processes)
    for (let calls = 0; calls < 3; calls += 1) {
      const { draw } = process.open.shift() as Process['open'][number];
      process.local.settle(draw, wholeAmount(7), false);
    }
  let drawn = 0;
  for (let round = 0; round < 3; round += 1)
    for (const process of world.processes) {
      world.sync(process, call);
      if (process.local.draw(wholeAmount(call), world.nowMs) !== null) drawn += 1;
    }
  expect(drawn).toBe(3);
  expect(amountToNumber(world.counter.used)).toBe(84);
});

test.each([
  ['drawn', (local: LocalCounter) => local.draw(-1n, 0)],
  ['used', (local: LocalCounter) => local.use(-1n)],
  ['waited for', (local: LocalCounter) => local.ask([-1n], 0)],
  ['settled', (local: LocalCounter) => local.settle({ amount: 0n, epoch: 0 }, -1n, true)],
])('a negative amount cannot be %s', (_what, act) => {
  const local = new LocalCounter('p1');
  const before = new LocalCounter('p1').ask([], 0);
  expect(() => act(local)).toThrow(RangeError);
  expect(local.ask([], 0)).toEqual(before);
});
