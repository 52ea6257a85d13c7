import { z } from 'zod';
import { integer, integerText } from '../scalars.ts';

/** How long a stored answer can be served, in seconds: a minute to ninety days, by default a week. */
export const cacheMaxAgeSeconds = { min: 60, max: 90 * 86_400, default: 7 * 86_400 } as const;

const maxAge = () => integer({ min: cacheMaxAgeSeconds.min, max: cacheMaxAgeSeconds.max });

/** How a call uses the response cache. `simple` is an exact match; there is no other mode. */
export type CachePolicy = { maxAgeSeconds: number };

/** `cache` of a config: `"simple"`, or `{"mode":"simple","max_age":3600}`; null turns an inherited one off. */
export const CacheInput = z
  .union([z.enum(['simple']), z.strictObject({ mode: z.enum(['simple']), max_age: maxAge().nullish() })])
  .transform((given): CachePolicy => {
    const age = typeof given === 'string' ? undefined : given.max_age;
    return { maxAgeSeconds: age ?? cacheMaxAgeSeconds.default };
  });

/** `x-gateway-cache-ttl`: whole seconds as text. */
export const CacheTtlHeader = integerText({ min: cacheMaxAgeSeconds.min, max: cacheMaxAgeSeconds.max });
