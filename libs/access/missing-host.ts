import { GatewayError } from '#libs/kernel/errors.ts';
import { providerPlaces } from '#libs/providers/provider-places.ts';

/** The refusal of a target whose provider has no address: none of its own, or one of settings that are not given. */
export function missingHost(provider: string): GatewayError {
  const setting = /\{(\w+)\}/.exec(providerPlaces[provider]?.address ?? '')?.[1];
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
