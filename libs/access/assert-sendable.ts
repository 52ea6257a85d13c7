import { GatewayError } from '#libs/kernel/errors.ts';

/**
 * Refuses a credential that cannot stand in a header: one that was pasted with a line break would be stored, and then
 * fail every call. Throws invalid_request, without quoting it.
 */
export function assertSendable(value: string, param: string): void {
  if (/^[\x21-\x7e]+$/.test(value)) return;
  throw new GatewayError(
    'invalid_request',
    'invalid_value',
    `Invalid '${param}': a credential consists of printable ASCII characters, without spaces and line breaks.`,
    { param },
  );
}
