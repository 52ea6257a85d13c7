import type { Logger } from '#libs/kernel/logging/logger.ts';
import { builtInPrices } from '#libs/prices/built-in-prices.ts';
import { createPricing } from '#libs/prices/pricing.ts';
import { createCallCosts } from '#libs/request-log/record/call-costs.ts';
import { createLimitRules } from '#libs/limits/limit-rules.ts';
import { Limits } from '#libs/limits/limits.ts';
import { createCounterStore } from '#libs/limits/counter-store.ts';
import { createLateUsage } from '#libs/policies/late-usage.ts';
import { createLimitAdmission } from '#libs/policies/limit-admission.ts';
import { createAlertRecorder } from '#libs/policies/record-alert.ts';
import { createUsedAmounts } from '#libs/policies/used-amounts.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { createCurrentPriceTable, priceTableKind } from '#libs/resources/price-tables.ts';
import { workspaceKind, type LiveWorkspace } from '#libs/people/workspaces.ts';
import { readAlertWebhook } from './config.ts';
import type { Platform, PlatformConfig } from './platform.ts';

/** Composes prices, and the budgets and rates that admit calls. */
export function composeLimits(
  config: PlatformConfig,
  {
    db,
    access,
    databaseClock,
    eventLog,
    queue,
  }: Pick<Platform, 'db' | 'access' | 'databaseClock' | 'eventLog' | 'queue'>,
  logger: Logger,
) {
  const pricing = createPricing({
    table: createCurrentPriceTable(() => access.snapshot.live(priceTableKind), builtInPrices),
    adjustmentsOf({ workspaceId, integration }) {
      const { snapshot } = access;
      const own = integration === null ? null : snapshot.findIntegration(workspaceId, integration)?.prices;
      const prices = snapshot.live<LiveWorkspace>(workspaceKind).byId.get(workspaceId)?.prices;
      return [...(own ? [own] : []), ...(prices ? [prices] : [])];
    },
  });
  const alertWebhook = readAlertWebhook(config);
  const alerts = createAlertRecorder({ eventLog, logger, queue: alertWebhook && queue });
  const limits = new Limits({
    store: createCounterStore({ db, countersPerLimitMax: config.SLUICE_LIMIT_ENTITIES_MAX }),
    clock: databaseClock,
    logger,
    onAlertDue: alerts.onAlertDue,
  });
  const limitedKinds = resourceKinds.filter((kind) => kind.cached?.limits !== undefined);
  const limitRulesOf = createLimitRules({
    version: () => access.snapshot.version(),
    records: () => [
      ...limitedKinds.map((kind) => access.snapshot.live(kind).records),
      access.snapshot.integrationLimits(),
    ],
  });
  const admission = createLimitAdmission({
    limits,
    rulesOf: limitRulesOf,
    amounts: createUsedAmounts(pricing, createLateUsage({ db, logger })),
    clock: databaseClock,
    unpriced: config.SLUICE_UNPRICED_CALLS,
  });
  return {
    pricing,
    costs: createCallCosts(pricing),
    limitRulesOf,
    admission,
    alertWebhook,
    limits: { stats: () => limits.stats(), refused: admission.refused, alerts: alerts.recorded },
    limitsPart: limits,
  };
}
