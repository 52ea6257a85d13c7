import { z } from 'zod';
import { addBreach, decimal, integer } from '../scalars.ts';

// Budgets and rates, as API keys, workspaces, integrations and providers have them. Amounts are US cents for `cost`.

/** Far above any real budget, and still exact in a JSON number with four decimals. */
const creditMax = 1_000_000_000_000;

export const UsageLimitType = z.enum(['cost', 'tokens']);
export type UsageLimitType = z.output<typeof UsageLimitType>;

export const RateLimitType = z.enum(['requests', 'tokens']);
export type RateLimitType = z.output<typeof RateLimitType>;

export const rateUnits = ['rpm', 'rph', 'rpd'] as const;
export const keyRateUnits = ['rps', 'rpm', 'rph', 'rpd', 'rpw'] as const;
export type RateUnit = (typeof keyRateUnits)[number];

const periodicReset = () => z.enum(['monthly', 'weekly']);

/** When the use of a budget restarts at 0. Both absent: never. */
export const resetFields = {
  periodic_reset: periodicReset().nullish(),
  periodic_reset_days: integer({ min: 1, max: 365 }).nullish(),
};

/** In per cent of the limit. */
export const alertThreshold = () => decimal(1, 100);

/** `credit_limit` of a budget that can also be 0, which refuses every call. */
export const creditLimit = (min = 0) => decimal(min, creditMax);

/**
 * A budget of a record: `credit_limit` US cents or tokens in each period. The gateway computes `next_usage_reset_at`.
 * It is accepted and ignored in requests, because clients send answers back.
 */
export const usageLimit = () =>
  z
    .strictObject({
      credit_limit: creditLimit(1).optional().describe('US cents for the type `cost`, otherwise tokens.'),
      type: UsageLimitType.default('cost'),
      alert_threshold: alertThreshold().nullish(),
      ...resetFields,
      next_usage_reset_at: z.iso.datetime({ offset: true }).nullish(),
    })
    .check((context) => {
      const { periodic_reset: reset, periodic_reset_days: days } = context.value;
      if (reset == null || days == null) return;
      addBreach(context, {
        path: ['periodic_reset_days'],
        code: 'invalid_value',
        text: (name) => `Invalid ${name()}: it cannot be combined with 'periodic_reset'. Set only one of them.`,
      });
    });

const limitsMax = 10;

/** One item for each of `keys`: two limits that differ only in their amount would be a mistake. */
const withoutRepeats = <Item extends z.ZodType<object>>(item: Item, keys: readonly string[]) =>
  z
    .array(item)
    .max(limitsMax)
    .check((context) => {
      const seen = new Set<string>();
      for (const [index, value] of context.value.entries()) {
        const key = keys.map((name) => String((value as Record<string, unknown>)[name])).join(' ');
        if (!seen.has(key)) {
          seen.add(key);
          continue;
        }
        addBreach(context, {
          path: [index],
          code: 'invalid_value',
          text: (name) => `Invalid ${name()}: there is already a limit for '${key}'. Set only one limit for each.`,
        });
      }
    });

const asList = (value: unknown): unknown =>
  value === null || value === undefined || Array.isArray(value) ? value : [value];

/** `usage_limits` of a record: a list, or a single budget. The result is always a list; at most one of each type. */
export const usageLimits = () => z.preprocess(asList, withoutRepeats(usageLimit(), ['type']));

const rateLimit = <Unit extends RateUnit>(units: readonly [Unit, ...Unit[]]) =>
  z.strictObject({
    type: RateLimitType,
    unit: z.enum(units),
    value: integer({ min: 0, max: Number.MAX_SAFE_INTEGER }),
  });

/** `rate_limits` of a record: a list, or a single rate. The result is always a list. 0 refuses every call. */
export const rateLimits = () => z.preprocess(asList, withoutRepeats(rateLimit(rateUnits), ['type', 'unit']));

/** `rate_limits` of an API key, which can also be per second or per week. */
export const keyRateLimits = () => z.preprocess(asList, withoutRepeats(rateLimit(keyRateUnits), ['type', 'unit']));

export type UsageLimit = z.output<ReturnType<typeof usageLimit>>;
export type RateLimit = { type: RateLimitType; unit: RateUnit; value: number };
