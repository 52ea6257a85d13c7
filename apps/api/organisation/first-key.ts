import { bootstrap } from '#libs/people/bootstrap.ts';
import { keepVirtualKey, keepVirtualKeys } from '#libs/resources/virtual-keys/kept-virtual-key.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { Platform } from '../../platform/platform.ts';
import type { ApiConfig } from '../config.ts';

type Simulator = Parameters<typeof keepVirtualKey>[2];

/** Creates the first workspace and key, and the virtual keys of the simulator. */
export function createFirstKey(
  config: ApiConfig,
  { db, eventLog, access }: Pick<Platform, 'db' | 'eventLog' | 'access'>,
): Part {
  const simulator = simulatorOf(config);
  const deps = { db, eventLog, secrets: access.secrets };
  return {
    name: 'first key',
    async start() {
      const key = config.SLUICE_BOOTSTRAP_KEY;
      // Without a given key, an empty database stays empty: a key that is generated here would not be shown to anyone.
      const known = await db.selectFrom('resource').select('id').where('kind', '=', 'workspace').executeTakeFirst();
      if (key === undefined && known === undefined) return;
      const { workspaceId } = await bootstrap(
        { db, eventLog },
        key === undefined ? null : new Secret(key),
        config.SLUICE_OWNER_EMAIL,
      );
      if (simulator !== undefined) {
        await keepVirtualKey(deps, workspaceId, simulator);
        await keepVirtualKeys(deps, simulator);
      }
      await access.snapshot.refresh();
    },
  };
}

/** Returns the virtual key of the simulator, if it runs. */
export const simulatorOf = ({ SLUICE_SIMULATOR_URL: customHost }: ApiConfig): Simulator | undefined =>
  customHost === undefined ? undefined : { ...simulatorKey, customHost };

const simulatorKey = {
  slug: 'simulator',
  provider: 'simulator',
  name: 'Simulator',
  note: 'Simulates a provider, without network and without cost.',
  // Like a provider, it rejects calls without a key, but it accepts any key.
  key: new Secret('simulator'),
};
