import type { Pricing } from '#libs/prices/pricing.ts';
import type { Price } from '#libs/prices/price-usage.ts';
import { findBaseModel } from './allowed-models.ts';
import type { PaidAnswer, Target } from './call.ts';

type Asked = { target: Pick<Target, 'provider' | 'integration' | 'models' | 'ownPrice'>; model: string | null };

/**
 * Returns the price of a whole answer; null: it is not known. It is computed once, by the first budget that counts it or
 * else by the record of its call, so that both have the same amount.
 */
export function priceAnswer(
  pricing: Pick<Pricing, 'priceOf'>,
  workspaceId: string,
  { target, model }: Asked,
  paid: PaidAnswer,
): Price | null {
  if (paid.price !== undefined) return paid.price;
  const { responseModel, usage } = paid;
  const models = [responseModel, model, findBaseModel(target, model)];
  const { provider, integration = null, ownPrice } = target;
  paid.price = pricing.priceOf({ workspaceId, integration }, { provider, models, ownPrice, usage });
  return paid.price;
}
