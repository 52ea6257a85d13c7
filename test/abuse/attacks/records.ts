import { configLimits } from '#libs/contracts/configs/config.ts';
import { chatBody, repeat, type Attack, type Scene } from '../attack.ts';

// Attacks by records that every process keeps in memory.

/** A config with almost the maximum number of values and bytes. */
const largeConfig = (index: number): string => {
  const { valuesMax, textBytesMax } = configLimits;
  const arrays = Array.from({ length: valuesMax - 10 }, () => []);
  const text = 'x'.repeat(textBytesMax - 3 * valuesMax - 100);
  const config = { virtual_key: 'fast', override_params: { x: arrays, text } };
  return JSON.stringify({ name: `flood ${index}`, slug: `flood-${index}`, config });
};

let configs = 0;

const createConfig = (scene: Scene): Promise<string> =>
  scene.call({ path: '/v1/configs', body: largeConfig((configs += 1)) });

/** Creates configs, four at a time, until one is refused or this many were created. */
async function createUntilRefused(scene: Scene, count: number): Promise<void> {
  let left = count;
  const one = async (): Promise<void> => {
    while (left > 0 && !scene.signal.aborted) {
      left -= 1;
      if ((await createConfig(scene)) !== '200') left = 0;
    }
  };
  await Promise.all(Array.from({ length: 4 }, one));
}

export const recordAttacks: readonly Attack[] = [
  {
    name: 'flood-of-configs',
    what: 'one tenant creates configs of the maximum size until it is refused, goes on, and calls with all of them',
    async prepare(scene) {
      configs = 0;
      await scene.model('fast');
      await createUntilRefused(scene, scene.isShort ? 20 : 1_100);
    },
    async run(scene) {
      const created = configs;
      const body = chatBody('any');
      let next = 0;
      const call = (): Promise<string> =>
        scene.call({ body, headers: { 'x-gateway-config': `flood-${1 + (next++ % created)}` } });
      await Promise.all([repeat(scene, 2, 250, call), repeat(scene, 1, 500, () => createConfig(scene))]);
    },
  },
];
