import { z } from 'zod';

/** What a provider said of its own rate limit for one credential and model, as GET /admin/provider-limits answers it. Times in Unix seconds. */
export const ProviderLimitObject = z.object({
  id: z.string(),
  object: z.literal('provider_limit'),
  provider: z.string(),
  /** The virtual key's slug; the provider when the key came with the calls. */
  virtual_key: z.string(),
  model: z.string(),
  /** Empty: the provider only said how long to wait. */
  limits: z.array(
    z.object({
      /** What is limited, in the provider's words: `requests`, `tokens`, `input-tokens`. */
      of: z.string(),
      limit: z.int().nullable(),
      remaining: z.int().nullable(),
      /** When all of it is free again. */
      resets_at: z.int().nullable(),
    }),
  ),
  /** The end of the rate-limit wait; null: there is none now. */
  waits_until: z.int().nullable(),
  /** When the provider said so. What is left now may differ. */
  reported_at: z.int(),
});
export type ProviderLimitObject = z.output<typeof ProviderLimitObject>;

/** All of them: there is no page after this one. */
export const ProviderLimitList = z.object({
  object: z.literal('list'),
  data: z.array(ProviderLimitObject),
  has_more: z.literal(false),
});
