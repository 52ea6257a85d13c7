import { sql, type RawBuilder } from 'kysely';
import type { AllowedModels } from '#libs/calls/call.ts';
import type { IntegrationModel } from '#libs/contracts/integrations.ts';
import type { RateLimit, UsageLimit } from '#libs/contracts/people/limits.ts';
import { organisationId } from '#libs/http/caller.ts';
import {
  compileAdjustments,
  type CompiledAdjustments,
  type PriceComponent,
  type PricingAdjustments,
} from '#libs/prices/adjustments.ts';
import type { OpenCredential, StoredCredential } from '#libs/credentials/stored.ts';
import { shownLimits } from '#libs/resources/limits/own-limits.ts';

/** The access that a workspace has to an integration. */
export type WorkspaceAccess = {
  enabled: boolean;
  usage_limits?: UsageLimit[] | null;
  rate_limits?: RateLimit[] | null;
  /** When the usage of its budgets was last reset manually; ISO 8601. */
  usage_reset_at?: string;
};

export type IntegrationData = StoredCredential & {
  name: string;
  description: string | null;
  pricing_adjustments: PricingAdjustments | null;
  /** Whether workspaces can use each other's objects at the provider. Absent: false. */
  share_stored_objects?: boolean;
  /** Absent: true. */
  allow_all_models?: boolean;
  /** By slug. */
  models?: Record<string, Omit<IntegrationModel, 'slug'>>;
  /** By workspace ID. */
  workspaces?: Record<string, WorkspaceAccess>;
  /** For workspaces without their own entry. Absent: no access. */
  global_workspace_access?: GlobalAccess;
};

/** The access of all workspaces, and the provider that a new workspace gets. */
export type GlobalAccess = WorkspaceAccess & {
  /** Absent: true. */
  create_default_provider?: boolean;
  /** Absent: the slug of the integration. */
  default_provider_slug?: string;
};

export type LiveIntegration = OpenCredential & {
  readonly id: string;
  readonly slug: string;
  /** The workspace that owns it, or the organisation. */
  readonly ownerId: string;
  readonly createdAtMs: number;
  readonly sharesStoredObjects: boolean;
  /** null: all. */
  readonly models: AllowedModels | null;
  /** null: the list prices. */
  readonly prices: CompiledAdjustments | null;
  readonly access: Pick<IntegrationData, 'workspaces' | 'global_workspace_access'>;
};

/** Identifies the limits of one workspace in the counters of an integration, in the same way as the ID of a record. */
export const sharedLimitsId = (integrationId: string, workspaceId: string): string => `${integrationId}.${workspaceId}`;

/** The record whose stream contains the limit events for this ID: the integration, or the record with the ID itself. */
export const recordOfLimits = (id: string): string => id.split('.')[0] ?? id;

const noAccess: WorkspaceAccess = { enabled: false };
const ownAccess: WorkspaceAccess = { enabled: true };

/** The access that a workspace has to an integration, which belongs to the workspace or to the organisation. */
export function accessOf(
  { ownerId, access }: Pick<LiveIntegration, 'ownerId' | 'access'>,
  workspaceId: string,
): WorkspaceAccess {
  if (ownerId === workspaceId) return ownAccess;
  if (ownerId !== organisationId) return noAccess;
  return access.workspaces?.[workspaceId] ?? access.global_workspace_access ?? noAccess;
}

/** Access as shown in answers; absent: none. */
export const shownAccess = (access: WorkspaceAccess = noAccess, createdAt: Date, nowMs: number) => ({
  enabled: access.enabled,
  usage_limits: shownLimits(access.usage_limits, createdAt, nowMs),
  rate_limits: access.rate_limits ?? null,
});

/** Whether an integration is shared with a workspace, as a condition on the organisation's rows of `resource`. */
export const isSharedWith = (workspaceId: string): RawBuilder<unknown> => sql`coalesce(
  (data -> 'workspaces' -> ${workspaceId}::text ->> 'enabled')::boolean,
  (data -> 'global_workspace_access' ->> 'enabled')::boolean, false)`;

/** null: every model can be called, and none is listed by name. */
export function allowedModelsOf({
  allow_all_models: allowsOthers = true,
  models = {},
}: IntegrationData): AllowedModels | null {
  const listed = Object.entries(models);
  if (allowsOthers && listed.length === 0) return null;
  return {
    allowsOthers,
    listed: new Map(listed.map(([slug, { enabled }]) => [slug, enabled])),
    custom: listed.flatMap(([slug, { enabled, is_custom, is_finetune }]) =>
      enabled && (is_custom === true || is_finetune === true) ? [slug] : [],
    ),
    bases: new Map(listed.flatMap(([slug, { base_model_slug: base }]) => (base ? [[slug, base] as const] : []))),
  };
}

/** How prices with an integration differ from the price list: its own adjustments, and the prices of its models. */
export function adjustmentsOf({ pricing_adjustments: own, models = {} }: IntegrationData): CompiledAdjustments | null {
  const priced = Object.entries(models).flatMap(([slug, { pricing_config: config }]) =>
    config ? [[slug, config.pay_as_you_go as Partial<Record<PriceComponent, string>>] as const] : [],
  );
  if (own === null && priced.length === 0) return null;
  return compileAdjustments({ ...own, models: { ...Object.fromEntries(priced), ...own?.models } });
}
