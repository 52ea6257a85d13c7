import type { LimitRule } from '#libs/limits/limit-rule.ts';
import { makeRecordRules } from '#libs/limits/limit-rule.ts';
import { organisationId } from '#libs/http/caller.ts';
import { accessOf, sharedLimitsId, type LiveIntegration } from '#libs/resources/integrations/integration-data.ts';
import type { LiveKind } from '#libs/records/live/live-resources.ts';
import type { LiveProvider } from '#libs/resources/integrations/providers.ts';
import type { LiveCredential } from '#libs/credentials/stored.ts';

/** Providers with the credentials of their integrations, which calls find by their slugs. */
export type ProviderCredentials = {
  readonly providers: LiveKind<LiveProvider>;
  readonly integrations: LiveKind<LiveIntegration>;
  readonly byId: ReadonlyMap<string, LiveCredential>;
  /** By workspace, then slug. */
  readonly bySlug: ReadonlyMap<string, ReadonlyMap<string, LiveCredential>>;
  /** The budgets and rates that integrations set for their workspaces, by the ID of the provider. */
  readonly limited: ReadonlyMap<string, { limits: readonly LimitRule[] }>;
};

/** Returns `previous` when neither providers nor integrations have changed. */
export function joinProviders(
  providers: LiveKind<LiveProvider>,
  integrations: LiveKind<LiveIntegration>,
  previous: ProviderCredentials | null,
): ProviderCredentials {
  if (previous?.providers === providers && previous.integrations === integrations) return previous;
  const byId = new Map<string, LiveCredential>();
  const bySlug = new Map<string, Map<string, LiveCredential>>();
  const limited = new Map<string, { limits: readonly LimitRule[] }>();
  for (const [id, provider] of providers.byId) {
    const integration = integrations.byId.get(provider.integrationId);
    const isUnreadable = integrations.unreadable.has(provider.integrationId);
    const credential = credentialOf(provider, integration ?? (isUnreadable ? 'unreadable' : 'deleted'));
    byId.set(id, credential);
    const slugs = bySlug.get(provider.workspaceId);
    if (slugs) slugs.set(provider.slug, credential);
    else bySlug.set(provider.workspaceId, new Map([[provider.slug, credential]]));
    const limits = integration === undefined ? [] : limitsOf(provider, integration);
    if (limits.length > 0) limited.set(id, { limits });
  }
  return { providers, integrations, byId, bySlug, limited };
}

/** Finds an integration by its slug, which is unique in the installation. */
export const findIntegration = (
  { bySlug }: LiveKind<LiveIntegration>,
  workspaceId: string,
  slug: string,
): LiveIntegration | undefined => bySlug.get(organisationId)?.get(slug) ?? bySlug.get(workspaceId)?.get(slug);

function credentialOf(provider: LiveProvider, integration: LiveIntegration | 'unreadable' | 'deleted'): LiveCredential {
  const { id, workspaceId, slug, expiresAtMs, aiProviderId } = provider;
  const own = { id, workspaceId, slug, noun: 'provider' as const, expiresAtMs };
  if (typeof integration === 'string') {
    const nothing = { customHost: null, baseUrl: null, settings: {}, apiKey: null, secrets: null };
    return { ...own, ...nothing, provider: aiProviderId, blocked: `integration_${integration}` };
  }
  const { customHost, baseUrl, settings, deployments, apiKey, secrets, mapped, models } = integration;
  return {
    ...own,
    provider: integration.provider,
    customHost,
    baseUrl,
    settings,
    apiKey,
    secrets,
    integration: integration.slug,
    ...(deployments === undefined ? {} : { deployments }),
    ...(mapped === undefined ? {} : { mapped }),
    ...(integration.ownerId === organisationId && !integration.sharesStoredObjects
      ? { sharedAccount: integration.id }
      : {}),
    ...(models === null ? {} : { models }),
    ...(accessOf(integration, workspaceId).enabled ? {} : { blocked: 'integration_not_shared' as const }),
  };
}

/** All providers of an integration in one workspace count in the same budgets. */
function limitsOf({ id: providerId, workspaceId }: LiveProvider, integration: LiveIntegration): LimitRule[] {
  const { id, slug, createdAtMs } = integration;
  const { usage_limits: budgets, rate_limits, usage_reset_at: resetAt } = accessOf(integration, workspaceId);
  return makeRecordRules(
    {
      id: sharedLimitsId(id, workspaceId),
      noun: 'integration',
      workspaceId,
      label: `the integration '${slug}' in this workspace`,
      createdAtMs,
      scope: { of: 'credential', id: providerId },
      usageResetAtMs: resetAt === undefined ? 0 : Date.parse(resetAt),
    },
    { usage_limits: budgets, rate_limits },
  );
}
