import type { Flaw } from '../check-shape.ts';
import { Refusal } from '../wire-format.ts';

/** A 400 with Anthropic's wording. */
export function refuse(message: string): never {
  throw new Refusal({ status: 400, message, type: 'invalid_request_error' });
}

/** `max_tokens: Field required`, `foo: Extra inputs are not permitted`, … */
export function refuseFlaw({ kind, path, message }: Flaw): never {
  const what = { missing: 'Field required', unknown: 'Extra inputs are not permitted', invalid: message }[kind];
  return refuse(`${path.join('.')}: ${what}`);
}
