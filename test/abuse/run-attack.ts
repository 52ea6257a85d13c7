import path from 'node:path';
import { sleep } from '#libs/kernel/sleep.ts';
import { createCleanup, type Cleanup } from '#test/bench/stack.ts';
import type { BenchProcess } from '#test/bench/start-process.ts';
import type { Attack } from './attack.ts';
import { createScene } from './rig/create-scene.ts';
import type { findMemoryGroups } from './rig/memory-group.ts';
import { startProduct } from './rig/start-product.ts';
import type { Victim, VictimFigures } from './rig/victim.ts';

/** The hostile provider's URL, without a path. */
export type Provider = { process: BenchProcess; url: string };

/** What all attacks of a run share. */
export type Arena = {
  folder: string;
  memory: ReturnType<typeof findMemoryGroups>;
  provider: Provider;
  /** Ends in `/v1`. */
  simulatorUrl: string;
  victim: Victim;
  /** A new, empty database for one attack. */
  createDatabase(): Promise<{ connectionString: string; drop(): Promise<unknown> }>;
  /** The folder of the whole run. */
  cleanup: Cleanup;
};

export type Sizes = {
  aloneSeconds: number;
  besideSeconds: number;
  /** The victim's live calls per second, and how long it waits for each. */
  perSecond: number;
  patienceMs: number;
  isShort: boolean;
};

export type AttackFigures = {
  alone: VictimFigures;
  beside: VictimFigures;
  /** Alone again, to see whether the effect ends with the attack. */
  after: VictimFigures;
  /**
   * How many processors each process kept busy during the attack (1: one of them all the time), and the p99 of the
   * API's event loop.
   */
  load: { api: number; worker: number; loopP99Ms: number };
  crashes: readonly string[];
  peaks: { api: number; worker: number };
  outcome: string;
};

const endMs = 15_000;
/** How long calls that are running when the attacker stops may take to end. */
const recoveryMs = 3_000;
let attacks = 0;

/**
 * Runs one attack on a product of its own: the victim is measured alone, then during the attack. Returns why the attack
 * is not possible here, or the figures.
 */
export async function runAttack(
  attack: Attack,
  arena: Arena,
  sizes: Sizes,
  say: (text: string) => void,
): Promise<AttackFigures | { missing: string }> {
  const { victim, provider } = arena;
  attacks += 1;
  const folder = path.join(arena.folder, `${attacks}-${attack.name}`);
  const cleanup = createCleanup();
  // Ctrl-C also cleans up.
  arena.cleanup.add(() => cleanup.run());
  try {
    const setUp = (await attack.setUp?.(arena.folder)) ?? { undo: async () => {} };
    if ('missing' in setUp) return setUp;
    cleanup.add(setUp.undo);
    const database = await arena.createDatabase();
    cleanup.add(() => database.drop());
    say('starts');
    const product = await startProduct({
      folder,
      connectionString: database.connectionString,
      memory: arena.memory,
      victimProvider: attack.sharesProvider === true ? `${arena.provider.url}/fast/v1` : arena.simulatorUrl,
      environment: { ...attack.environment, ...setUp.environment },
      apiLauncher: setUp.apiLauncher ?? [],
    });
    cleanup.add(() => product.stop());
    const { perSecond, patienceMs } = sizes;
    const order = { origin: product.url, key: product.victimKey, perSecond, patienceMs };
    say('victim alone');
    // The first calls compile code and open connections.
    const first = await victim.measure({ ...order, seconds: Math.min(2, sizes.aloneSeconds) });
    const alone = sizes.isShort ? first : await victim.measure({ ...order, seconds: sizes.aloneSeconds });
    const over = new AbortController();
    const scene = createScene({
      url: product.url,
      key: product.attackerKey,
      providerUrl: provider.url,
      simulatorUrl: arena.simulatorUrl,
      listenOn: (addresses) => listenOn(provider, addresses),
      moveVictim: (customHost) => product.moveVictim(customHost),
      pool: product.pool,
      folder: arena.folder,
      isShort: sizes.isShort,
      signal: over.signal,
    });
    cleanup.add(() => scene.close());
    if (attack.prepare) {
      say('is prepared');
      await attack.prepare(scene);
    }
    say('victim beside it');
    const attacking = attack.run(scene);
    // A mistake in the attack is reported when the victim has finished.
    attacking.catch(() => {});
    const readLoad = await product.startLoad();
    const beside = await victim.measure({ ...order, seconds: Math.max(sizes.besideSeconds, attack.secondsMin ?? 0) });
    const load = await readLoad();
    over.abort();
    await Promise.race([attacking, sleep(endMs)]);
    const outcome = await Promise.race([
      scene.outcome(),
      new Promise<string>((resolve) => setTimeout(resolve, endMs, 'the API does not tell').unref()),
    ]);
    say('victim alone again');
    await Promise.race([scene.cancelBatches(), sleep(endMs)]);
    // Calls that still run only change times.
    if (!sizes.isShort) await sleep(recoveryMs);
    const after = await victim.measure({ ...order, seconds: sizes.aloneSeconds });
    return { alone, beside, after, load, crashes: [...product.crashes()], peaks: product.peaks(), outcome };
  } finally {
    await cleanup.run();
  }
}

async function listenOn({ process: { child } }: Provider, addresses: readonly string[]): Promise<void> {
  const listening = new Promise((resolve) => child.once('message', resolve));
  child.send(addresses);
  await listening;
}
