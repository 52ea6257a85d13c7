import { GatewayError } from '#libs/kernel/errors.ts';
import type { Json } from '../turns/json-value.ts';

/** What Bedrock and Vertex AI add to the body of a message. Other providers refuse it. */
export const hostMembers: Json = { anthropic_version: undefined, anthropic_beta: undefined };

/** The header with which clients of Anthropic's API send betas. */
export const betaHeader = 'anthropic-beta';

/**
 * The betas of a body that was written for such a host, as the value of the header; null: it has none. Throws
 * invalid_request for what cannot be one.
 */
export function readBetas({ anthropic_beta: betas }: Json): string | null {
  if (betas === undefined) return null;
  const isBeta = (beta: unknown): boolean => typeof beta === 'string' && /^[\w.-]{1,100}$/.test(beta);
  if (Array.isArray(betas) && betas.length <= 50 && betas.every(isBeta)) return betas.join(',');
  const message =
    'The member \'anthropic_beta\' must be a list of at most 50 names, such as ["context-1m-2025-08-07"].';
  throw new GatewayError('invalid_request', 'invalid_type', message, { param: 'anthropic_beta' });
}
