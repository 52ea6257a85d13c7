import type { CallerDefaults } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { RequestCredentials } from './request-credentials.ts';

/** What a key says about the configs of its requests. */
export type ConfigDefaults = Pick<CallerDefaults, 'configId' | 'allowsConfigOverride'>;

/** Of requests that no key's defaults apply to. */
export const noDefaults: ConfigDefaults = { configId: null, allowsConfigOverride: true };

/**
 * Refuses what would take the place of a key's default config, or change it for one call: a config of any kind, and the
 * headers that stand for members of one (`hasOptions`). Which virtual key, provider or host the headers name is left to
 * the config: its targets take them only where it says nothing itself. Throws forbidden.
 */
export function refuseConfigOverride(
  { allowsConfigOverride }: ConfigDefaults,
  { config }: Pick<RequestCredentials, 'config'>,
  hasOptions: boolean,
): void {
  if (allowsConfigOverride) return;
  if (config !== null) {
    throw forbidden(`leave out ${config.param}`, config.param);
  }
  if (hasOptions) {
    const names = 'request-timeout, retry-count, forward-headers, strict-open-ai-compliance, cache and cache-ttl';
    throw forbidden(`leave out the x-gateway- headers that change one (${names})`, null);
  }
}

const forbidden = (remedy: string, param: string | null): GatewayError =>
  new GatewayError(
    'forbidden',
    'config_override_not_allowed',
    `The config of this API key is fixed (allow_config_override is false). Either ${remedy}, or use another key.`,
    { param },
  );
