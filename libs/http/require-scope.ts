import { GatewayError } from '#libs/kernel/errors.ts';
import type { Caller } from './caller.ts';

/** Throws forbidden when the caller's key may not do what `scope` names. */
export function requireScope({ scopes }: Pick<Caller, 'scopes'>, scope: string): void {
  if (scopes === 'all' || scopes.has(scope)) return;
  const message = `This API key lacks the scope '${scope}': use a key that has it, or one made without a list of scopes.`;
  throw new GatewayError('forbidden', 'missing_scope', message);
}
