import { GatewayError } from '#libs/kernel/errors.ts';
import type { Caller } from './caller.ts';

export const hasScope = ({ scopes }: Pick<Caller, 'scopes'>, scope: string): boolean =>
  scopes === 'all' || scopes.has(scope);

/** Throws forbidden if the caller's key does not have the scope. */
export function requireScope({ scopes }: Pick<Caller, 'scopes'>, scope: string): void {
  if (hasScope({ scopes }, scope)) return;
  const message = `This API key lacks the scope '${scope}': use a key that has it, or one made without a list of scopes.`;
  throw new GatewayError('forbidden', 'missing_scope', message);
}
