import { setPriority } from 'node:os';
import path from 'node:path';
import { startProcess } from '#test/bench/start-process.ts';
import type { Cleanup } from '#test/bench/stack.ts';
import { findMemoryGroups } from './rig/memory-group.ts';
import { startVictim } from './rig/victim.ts';
import type { Arena } from './run-attack.ts';

/**
 * The priority of everything that attacks. In reality the attacker and its provider have their own processors. Here
 * they get what the product, the victim and the victim's provider leave, so that what those lose is due to the product.
 */
export const attackerPriority = 10;

const hostileProvider = 'test/abuse/rig/hostile-provider-process.ts';

/** Starts what all attacks of a run share, outside the memory limits: hostile provider, simulator and victim. */
export async function startArena(
  folder: string,
  createDatabase: Arena['createDatabase'],
  cleanup: Cleanup,
): Promise<Arena> {
  const start = async (name: string, script: string, environment: Record<string, string>) => {
    const process = await startProcess({ name, script, environment, logFile: path.join(folder, `${name}.log`) });
    cleanup.add(() => process.stop());
    const [, url = ''] = await process.waitForLog(/"url":"(http:[^"]+)"/);
    return { process, url };
  };
  const simulator = await start('simulator', 'apps/simulator/main.ts', { PORT: '0', LOG_LEVEL: 'info' });
  const victim = await startVictim(folder);
  cleanup.add(() => victim.stop());
  const provider = await start('provider', hostileProvider, {});
  setPriority(provider.process.pid, attackerPriority);
  return {
    folder,
    memory: findMemoryGroups(),
    provider,
    simulatorUrl: `${simulator.url}/v1`,
    victim,
    createDatabase,
    cleanup,
  };
}
