import { sql } from 'kysely';
import type { z } from 'zod';
import { z as schema } from 'zod';
import { IntegrationObject, integrationFields } from '#libs/contracts/integrations.ts';
import { organisationId } from '#libs/http/caller.ts';
import { newId } from '#libs/kernel/ids.ts';
import { shownAdjustments } from '#libs/prices/adjustments.ts';
import { defineKind, recordsLimit, type CheckContext } from '#libs/resources/define-kind.ts';
import type { Checked } from '#libs/records/kit.ts';
import {
  adjustmentsOf,
  allowedModelsOf,
  isSharedWith,
  shownAccess,
  type GlobalAccess,
  type IntegrationData,
  type LiveIntegration,
  type WorkspaceAccess,
} from './integration-data.ts';
import { integrationRoutes } from './integration-routes.ts';
import { addDefaultProvider, providerIdPrefix, sharingLock } from './providers.ts';
import { asJson } from '#libs/records/resource-row.ts';
import { slugLock } from '#libs/records/traits/slugs.ts';
import { liveCredential } from '#libs/credentials/stored.ts';
import {
  checkChangedCredential,
  checkNewCredential,
  credentialKinds,
  credentialMember,
  shownSettings,
} from '#libs/resources/stored-credential.ts';
import { exampleProvider, mappingErrors } from '#libs/resources/kind-texts.ts';

type Input = Partial<z.output<z.ZodObject<typeof integrationFields>>>;

/**
 * A provider credential that is stored once for the organisation (or for one workspace) and shared with workspaces, together
 * with the models that can be called with it. A workspace uses it through a provider
 * (libs/resources/integrations/providers.ts).
 */
export const integrationKind = defineKind<typeof integrationFields, IntegrationData, LiveIntegration>({
  noun: 'integration',
  idPrefix: 'int_',
  area: 'integrations',
  texts: {
    create: {
      description:
        'Stores the credential of a provider for the whole organisation or for one workspace. For a single workspace, ' +
        'a provider is created as well unless `create_default_provider` is false.',
      example: { name: 'Company account', ai_provider_id: exampleProvider, key: 'sk-your-key' },
      errors: mappingErrors,
    },
    update: {
      description: 'The next call in every workspace uses the new credential.',
      example: { description: 'Paid by the search department' },
      errors: { credential_required: 'the stored credential would be sent to another server', ...mappingErrors },
    },
    delete: {
      description: 'Deletes the credential. Calls with its providers are rejected with `integration_deleted`.',
    },
  },
  path: '/v1/integrations',
  names: {
    one: 'integration',
    many: 'integrations',
    tag: 'Integrations',
    about: 'Credentials that the organisation stores once and shares with workspaces.',
  },
  shared: { isDefault: true, with: isSharedWith },
  locks: [sharingLock],
  fields: integrationFields,
  applied: {
    refersTo: { secret_reference: null },
    secrets: new RegExp(`^(?:key|configurations/${credentialMember})$`),
    areCredentials: true,
  },
  changes: { immutable: ['ai_provider_id', 'create_default_provider', 'default_provider_slug'] },
  slugs: { areGlobal: true },
  creation: {
    limit: recordsLimit,
    also: {
      streams: ({ create_default_provider: isWanted }, _deps, workspaceId) =>
        isWanted === false || workspaceId === organisationId
          ? []
          : [slugLock(workspaceId, credentialKinds[0]), newId(providerIdPrefix)],
      async run(unit, { default_provider_slug: wanted }, { row, locked: [, id] }) {
        if (id !== undefined)
          await addDefaultProvider(unit, id, { integration: row, slug: wanted as string | undefined });
      },
    },
  },
  // Organisation requests and the log find an integration by its slug, no matter which owner it has.
  filters: {
    type: {
      schema: schema.enum(['workspace', 'organisation', 'all']),
      where: (type: string) =>
        type === 'all' ? sql`true` : sql`(workspace_id = ${organisationId}) = ${type === 'organisation'}`,
    },
  },

  check: (input, context) =>
    context.row === null ? checkNew(input, context) : checkChange(input, context, context.row.data),

  history: {
    events: {
      // The budget of a workspace (`workspace_id`) has reached its alert threshold.
      alert_reached: (data) => data,
      models_set(data, event) {
        const { models = {}, ...rest } = event.data as Pick<IntegrationData, 'models' | 'allow_all_models'>;
        return { ...data, ...rest, models: { ...data.models, ...models } };
      },
      models_removed(data, event) {
        const { slugs } = event.data as { slugs: string[] };
        const models = { ...data.models };
        for (const slug of slugs) delete models[slug];
        return { ...data, models };
      },
      /** `replaces`: workspaces without an entry here lose their own. */
      workspaces_set(data, event) {
        const { workspaces, replaces, ...rest } = event.data as {
          workspaces: Record<string, WorkspaceAccess>;
          global_workspace_access?: GlobalAccess;
          replaces?: true;
        };
        return { ...data, ...rest, workspaces: { ...(replaces ? {} : data.workspaces), ...workspaces } };
      },
    },
  },

  view(row, nowMs) {
    const { workspace_id, data, deleted_at } = row;
    return {
      organisation_id: organisationId,
      workspace_id: workspace_id === organisationId ? null : workspace_id,
      ai_provider_id: data.provider,
      name: data.name,
      description: data.description,
      status: deleted_at ? 'archived' : 'active',
      masked_key: data.secret_id === null ? '' : `********${data.secret_last_four}`,
      configurations: shownSettings(data),
      secret_mappings: data.secret_mappings ?? [],
      global_workspace_access_settings: shownAccess(data.global_workspace_access, row.created_at, nowMs),
      allow_all_models: data.allow_all_models ?? true,
      share_stored_objects: data.share_stored_objects ?? false,
      workspace_count: Object.values(data.workspaces ?? {}).filter((access) => access.enabled).length,
      pricing_adjustments: shownAdjustments(data.pricing_adjustments),
    };
  },
  viewSchema: IntegrationObject,

  cached: {
    toEntry({ id, slug, workspace_id: ownerId, data, created_at }, secrets) {
      const { workspaces, global_workspace_access } = data;
      return {
        id,
        slug: slug ?? id,
        ownerId,
        createdAtMs: created_at.getTime(),
        sharesStoredObjects: data.share_stored_objects ?? false,
        models: allowedModelsOf(data),
        prices: adjustmentsOf(data),
        access: {
          ...(workspaces === undefined ? {} : { workspaces }),
          ...(global_workspace_access === undefined ? {} : { global_workspace_access }),
        },
        ...liveCredential(data, secrets, ownerId),
      };
    },
  },

  routes: integrationRoutes,
});

/** In the form of a virtual key, where these members are next to each other. */
const credentialOf = ({ key, configurations, secret_mappings: mappings, ai_provider_id: provider }: Input) => ({
  ...configurations,
  ...(mappings === undefined ? {} : { secret_mappings: mappings }),
  ...(provider === undefined ? {} : { provider }),
  ...(key === undefined ? {} : { key }),
});

async function checkNew(input: Input, context: CheckContext<IntegrationData>): Promise<Checked<IntegrationData>> {
  const { data, secrets } = await checkNewCredential(credentialOf(input), context, 'ai_provider_id');
  const { name = '', description = null, pricing_adjustments: prices = null, share_stored_objects } = input;
  return {
    data: asJson({ name, description, pricing_adjustments: prices, share_stored_objects, ...data }) as IntegrationData,
    secrets,
  };
}

async function checkChange(
  input: Input,
  context: CheckContext<IntegrationData>,
  stored: IntegrationData,
): Promise<Checked<IntegrationData>> {
  const { data, ...secrets } = await checkChangedCredential(credentialOf(input), context, stored);
  const { name, description, pricing_adjustments, share_stored_objects } = input;
  return {
    data: asJson({ name, description, pricing_adjustments, share_stored_objects, ...data }) as Partial<IntegrationData>,
    ...secrets,
  };
}
