import { z } from 'zod';
import { parseWith } from '../parse.ts';
import { integer } from '../scalars.ts';

/** A bound on the output of a call. A value below 1 bounds nothing, and an estimate made from it would be a credit. */
export const outputBound = () => integer({ min: 1 }).nullish();

/**
 * The members that bound the output of a call, for bodies that are forwarded without a full check. The provider checks
 * other members.
 */
export const outputBounds = {
  max_tokens: outputBound(),
  max_completion_tokens: outputBound(),
  max_output_tokens: outputBound(),
  max_prompt_tokens: outputBound(),
  n: outputBound(),
  best_of: outputBound(),
};

export const outputBoundNames = Object.keys(outputBounds) as (keyof typeof outputBounds)[];

const BoundedBody = z.looseObject(outputBounds);

/** A completion can also be asked for the probabilities of its prompt alone. */
const zeroOrMore = integer({ min: 0 }).nullish();
const BoundedCompletion = BoundedBody.extend({ max_tokens: zeroOrMore, best_of: zeroOrMore });

/** Throws the GatewayError `invalid_request` for a body with a bound that is not a whole number of at least 1. */
export function requireGoodBounds(body: Readonly<Record<string, unknown>>, isCompletion = false): void {
  if (outputBoundNames.some((name) => body[name] !== undefined))
    parseWith(isCompletion ? BoundedCompletion : BoundedBody, body);
}

/** The body without bounds below 1. */
export function withoutLowBounds(body: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  const low = new Set<string>(outputBoundNames.filter((name) => typeof body[name] === 'number' && body[name] < 1));
  return low.size === 0 ? body : Object.fromEntries(Object.entries(body).filter(([name]) => !low.has(name)));
}
