import { GatewayError } from '#libs/kernel/errors.ts';
import type { Settings } from '#libs/providers/provider.ts';
import { findProvider } from '#libs/providers/registry.ts';

/** The refusal of a target whose provider has no address: none of its own, or one made of a setting that is not given. */
export function missingHost(provider: string, settings: Settings): GatewayError {
  const address = findProvider(provider)?.address ?? '';
  const names = [...address.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => name);
  const setting = names.find((name) => !settings[name]);
  return new GatewayError(
    'invalid_request',
    'missing_required_parameter',
    setting === undefined
      ? `Missing required parameter: 'custom_host'. The provider '${provider}' has no address of its own.`
      : `Missing required parameter: '${setting}'. The address of the provider '${provider}' is made of it; ` +
          `or give a server of your own as 'custom_host'.`,
    { param: setting ?? 'custom_host' },
  );
}
