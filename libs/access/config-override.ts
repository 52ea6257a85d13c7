import type { CallerDefaults } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { RequestCredentials } from './request-credentials.ts';

/** The config settings of a key's defaults. */
export type ConfigDefaults = Pick<CallerDefaults, 'configId' | 'allowsConfigOverride'>;

/** For requests without a key's defaults. */
export const noDefaults: ConfigDefaults = { configId: null, allowsConfigOverride: true };

/**
 * Rejects a request that would replace the fixed default config of its key, or change it for one call: with another
 * config, or with headers that override its members (`hasOptions`). Headers that name a virtual key, provider or host
 * are allowed, because targets only use them if the config leaves that open. Throws forbidden.
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
