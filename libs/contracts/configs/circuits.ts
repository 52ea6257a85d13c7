import { z } from 'zod';

/** One circuit as in the answer of GET /admin/circuits. Times in Unix seconds. */
export const CircuitObject = z.object({
  id: z.string(),
  object: z.literal('circuit'),
  provider: z.string(),
  /** The virtual key's slug; the provider when the key came with the calls. */
  virtual_key: z.string(),
  model: z.string(),
  /** `half_open`: its time is over, and the next call is a probe. Closed ones are not listed. */
  state: z.enum(['open', 'half_open']),
  opened_at: z.int(),
  open_until: z.int(),
  failures: z.int(),
  /** The last failure: an error code, or `http_503`. */
  reason: z.string(),
});
export type CircuitObject = z.output<typeof CircuitObject>;

/** The list is complete and has no further page. */
export const CircuitList = z.object({
  object: z.literal('list'),
  data: z.array(CircuitObject),
  has_more: z.literal(false),
});
