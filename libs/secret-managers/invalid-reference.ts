import { GatewayError } from '#libs/kernel/errors.ts';

/** The error for a reference that could never be fetched. `why` explains what would be right. */
export const invalidReference = (param: string, why: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${why}.`, { param });
