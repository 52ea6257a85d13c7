import { isStorable } from '#libs/contracts/scalars.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/** Throws invalid_request for a config that the log cannot store: one with U+0000 or a lone surrogate in any text. */
export function refuseUnstorable(document: unknown, param: string): void {
  JSON.stringify(document, (name, value: unknown) => {
    if (isStorable(name) && (typeof value !== 'string' || isStorable(value))) return value;
    const message = `Invalid '${param}': expected well-formed Unicode text without the character U+0000 everywhere.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param });
  });
}
