import { setPriority } from 'node:os';
import path from 'node:path';
import { startProcess } from '#test/bench/start-process.ts';
import type { Cleanup } from '#test/bench/stack.ts';
import { findMemoryGroups } from './rig/memory-group.ts';
import { startVictim } from './rig/victim.ts';
import type { Arena } from './run-attack.ts';

const hostileProvider = 'test/abuse/rig/hostile-provider-process.ts';

/** Starts what all attacks of a run share, outside of the limits of memory: hostile provider, simulator and victim. */
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
  const provider = await start('provider', hostileProvider, {});
  const flooder = await start('flooder', hostileProvider, {});
  // Elsewhere it would have processors of its own: here it must not take them from those that it attacks.
  setPriority(flooder.process.pid, 10);
  const simulator = await start('simulator', 'apps/simulator/main.ts', { PORT: '0', LOG_LEVEL: 'info' });
  const victim = await startVictim(folder);
  cleanup.add(() => victim.stop());
  return {
    folder,
    memory: findMemoryGroups(),
    provider,
    flooder,
    simulatorUrl: `${simulator.url}/v1`,
    victim,
    createDatabase,
    cleanup,
  };
}
