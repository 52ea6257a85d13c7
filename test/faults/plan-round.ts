import { createRandom, type Random } from './random.ts';

/** When a fault strikes: this long after a moment in the life of the batch. */
export type Moment = {
  after: 'upload_sent' | 'uploaded' | 'create_sent' | 'created' | 'validated' | 'progress' | 'finalizing';
  /** For `progress`: the share of lines that are settled, 0 to 1. */
  share: number;
  delayMs: number;
};

export type Fault =
  | { kind: 'kill_worker'; worker: 0 | 1; downMs: number }
  | { kind: 'pause_worker'; worker: 0 | 1 }
  | { kind: 'stop_worker'; worker: 0 | 1; downMs: number }
  | { kind: 'kill_api'; downMs: number }
  | { kind: 'kill_postgres'; downMs: number }
  | { kind: 'hang_postgres'; forMs: number }
  /** Sets the clock of the database forward or, if negative, back. */
  | { kind: 'move_clock'; byMs: number }
  /** Kills Postgres, the API and the workers at the same moment, as if the machine had lost power. */
  | { kind: 'kill_everything'; downMs: number }
  | { kind: 'end_sessions'; forMs: number }
  /** The volume of the blobs is unmounted, or their server hangs. */
  | { kind: 'lose_blobs'; forMs: number }
  | { kind: 'cancel' }
  /** Takes the work of a worker that is alive away, as another one does that judges it dead. */
  | { kind: 'give_up_worker' }
  | { kind: 'delete_input' };

export type PlannedFault = Fault & { at: Moment };

export type RoundPlan = {
  seed: number;
  lines: number;
  model: string;
  /** How often one execution of a line calls the provider again, given that model. */
  retriesMax: number;
  latencyMs: number;
  /** Through a stored virtual key, or with a key that the caller sends and the batch keeps until it ends. */
  target: 'virtual_key' | 'own_key';
  /** One or both workers run. */
  workers: 1 | 2;
  /** Gives lost workers up at once, so that a round does not wait eleven seconds for that. */
  hurry: boolean;
  /** The batch expires this long after its creation. Null: after a day. */
  expiryMs: number | null;
  faults: readonly PlannedFault[];
};

export type PlanOptions = {
  linesMax: number;
  /** The most lines that both workers have in flight, which turns a desired duration into a latency. */
  callsInFlight: number;
  /** Percentage of rounds that skip the wait until a lost worker is given up. */
  hurryPercent: number;
  /** Percentage of Postgres kills after which it stays down longer than any process keeps its snapshot. */
  longOutagePercent: number;
  /** Percentage of rounds with few calls that take longer than a lost worker is waited for. */
  longCallsPercent: number;
};

const startsProcess: ReadonlySet<Fault['kind']> = new Set([
  'kill_worker',
  'stop_worker',
  'kill_api',
  'kill_everything',
]);

const outageMs = 36_000;
const longCallMs = 15_000;

/** Pure: the same seed gives the same plan. */
export function planRound(seed: number, options: PlanOptions): RoundPlan {
  const random = createRandom(seed);
  const long = random.chance(options.longCallsPercent);
  const few = random.chance(20) ? random.between(1, 8) : Math.ceil(options.linesMax ** (0.4 + 0.6 * random.next()));
  const lines = long ? Math.min(few, options.callsInFlight) : few;
  const flaky = random.chance(30);
  const durationMs = long ? longCallMs : random.between(500, 5_000);
  const perLine = (durationMs * options.callsInFlight) / Math.max(lines, options.callsInFlight);
  const latencyMs = Math.round(Math.max(5, Math.min(perLine, long ? longCallMs : 2_000)));
  const faults: PlannedFault[] = [];
  const target = random.chance(35) ? 'own_key' : 'virtual_key';
  const count = random.between(1, 4);
  while (faults.length < count) {
    const fault = chooseFault(random, options.longOutagePercent);
    // One of these is enough, and two would only make a round long.
    const once = fault.kind !== 'kill_worker' && fault.kind !== 'kill_api' && fault.kind !== 'kill_postgres';
    if (once && faults.some(({ kind }) => kind === fault.kind)) continue;
    // A process does not start without its blobs.
    const kinds = [fault, ...faults].map(({ kind }) => kind);
    if (kinds.includes('lose_blobs') && kinds.some((kind) => startsProcess.has(kind))) continue;
    faults.push({ ...fault, at: chooseMoment(random, fault.kind, durationMs) });
  }
  return {
    seed,
    lines,
    model: `${target === 'virtual_key' ? '@simulator/' : ''}${flaky ? 'sim-flaky-10' : 'sim-small'}+${latencyMs}ms`,
    target,
    retriesMax: flaky ? 1 : 0,
    latencyMs,
    // Pausing a worker only tests something if another one takes over.
    workers: random.chance(50) || faults.some(({ kind }) => kind === 'pause_worker') ? 2 : 1,
    hurry: random.chance(options.hurryPercent),
    // A retry that would start after the deadline is not made, and then a flaky line rightly fails for good.
    // Nothing expires for two minutes after the clock was set forward.
    expiryMs:
      random.chance(12) && !flaky && !faults.some(({ kind }) => kind === 'move_clock')
        ? random.between(1_000, durationMs + 1_500)
        : null,
    faults,
  };
}

const weighted: readonly { kind: Fault['kind']; weight: number }[] = [
  { kind: 'kill_worker', weight: 35 },
  { kind: 'kill_postgres', weight: 16 },
  { kind: 'hang_postgres', weight: 7 },
  { kind: 'move_clock', weight: 7 },
  { kind: 'kill_everything', weight: 6 },
  { kind: 'kill_api', weight: 14 },
  { kind: 'pause_worker', weight: 8 },
  { kind: 'stop_worker', weight: 8 },
  { kind: 'end_sessions', weight: 6 },
  { kind: 'lose_blobs', weight: 8 },
  { kind: 'cancel', weight: 12 },
  { kind: 'give_up_worker', weight: 7 },
  { kind: 'delete_input', weight: 6 },
];

export const faultKinds: readonly Fault['kind'][] = weighted.map(({ kind }) => kind);

function chooseFault(random: Random, long: number): Fault {
  const total = weighted.reduce((sum, { weight }) => sum + weight, 0);
  let at = random.next() * total;
  const chosen = weighted.find(({ weight }) => (at -= weight) < 0) ?? weighted[0];
  const worker = random.pick([0, 1] as const);
  const downMs = random.pick([0, 0, 200, 1_000]);
  const kind = chosen?.kind ?? 'kill_worker';
  switch (kind) {
    case 'kill_worker':
    case 'stop_worker':
      return { kind, worker, downMs };
    case 'pause_worker':
      return { kind, worker };
    case 'kill_everything':
    case 'kill_api':
      return { kind, downMs };
    case 'kill_postgres':
      return { kind, downMs: random.chance(long) ? outageMs : random.pick([0, 300, 1_000, 3_000, 15_000]) };
    case 'hang_postgres':
      return { kind, forMs: random.chance(25) ? 20_000 : random.between(500, 8_000) };
    case 'move_clock':
      return { kind, byMs: random.pick([60_000, -60_000]) };
    case 'end_sessions':
      return { kind, forMs: random.between(200, 3_000) };
    case 'lose_blobs':
      return { kind, forMs: random.between(200, 8_000) };
    case 'cancel':
    case 'give_up_worker':
    case 'delete_input':
      return { kind };
  }
}

const anyMoment = [
  'uploaded',
  'created',
  'created',
  'validated',
  'progress',
  'progress',
  'finalizing',
] as const satisfies Moment['after'][];

function chooseMoment(random: Random, kind: Fault['kind'], durationMs: number): Moment {
  const share = random.next();
  const soon = random.between(0, 60);
  switch (kind) {
    case 'kill_api':
      return {
        after: random.pick(['upload_sent', 'upload_sent', 'create_sent', 'create_sent', 'created', 'progress']),
        share,
        delayMs: soon,
      };
    case 'cancel':
      if (random.chance(40)) return { after: 'progress', share: 0.9 + share / 10, delayMs: soon };
      return { after: random.pick(['created', 'validated', 'progress']), share, delayMs: random.between(0, 300) };
    case 'give_up_worker':
    case 'move_clock':
      return { after: 'progress', share: share / 2, delayMs: soon };
    case 'delete_input':
      return { after: random.pick(['created', 'progress']), share, delayMs: soon };
    case 'kill_worker':
    case 'pause_worker':
    case 'stop_worker':
    case 'kill_postgres':
    case 'hang_postgres':
    case 'kill_everything':
    case 'lose_blobs':
    case 'end_sessions': {
      const after = random.pick(anyMoment);
      // Near the last line, where an end could be lost or come twice.
      if (after === 'progress' && random.chance(30)) return { after, share: 0.97 + share * 0.03, delayMs: soon };
      const delayMs = after === 'created' ? random.between(0, durationMs) : soon;
      return { after, share, delayMs };
    }
  }
}
