import { GatewayError } from '#libs/kernel/errors.ts';
import { providerIds } from '#libs/providers/registry.ts';

export const unknownProvider = (name: string, param: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'invalid_value',
    `There is no provider '${name.slice(0, 100)}'. Known providers: ${providerIds.join(', ')}.`,
    { param },
  );
