import { GatewayError } from '#libs/kernel/errors.ts';

/** The refusal of a virtual key without a custom host, for a provider that has no address of its own. */
export const missingHost = (provider: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'missing_required_parameter',
    `Missing required parameter: 'custom_host'. The provider '${provider}' has no address of its own.`,
    { param: 'custom_host' },
  );
