import { z } from 'zod';
import { priceComponents, type PriceComponent } from '#libs/prices/adjustments.ts';
import { slug, timestamp } from './people/access-fields.ts';
import { rateLimits, usageLimit, usageLimits } from './people/limits.ts';
import { amount, pricingAdjustments } from './logs/prices.ts';
import { anyObject, text } from './scalars.ts';
import { SecretMappingObject, secretMappings } from './secret-references.ts';
import { credentialText, providerConfiguration } from './virtual-keys.ts';

// An integration contains the credential of a provider for the organisation. A provider is a workspace's use of it.

export const integrationLimits = { modelsMax: 1_000, workspacesMax: 1_000, atOnceMax: 500 };

/** Members of the body of POST /integrations. */
export const integrationFields = {
  name: text({ min: 1, max: 200 }),
  ai_provider_id: slug(),
  key: credentialText().optional(),
  description: text({ max: 2_000 }).nullish(),
  configurations: providerConfiguration().optional(),
  secret_mappings: secretMappings(),
  pricing_adjustments: pricingAdjustments().nullish(),
  share_stored_objects: z
    .boolean()
    .optional()
    .describe(
      'Whether workspaces that use this integration can list, read and delete objects that other workspaces stored at the provider, such as assistants, threads, responses and files. If false, each workspace sees only its own.',
    ),
  create_default_provider: z.boolean().default(true),
  default_provider_slug: slug().optional(),
};

/** A part of a price: cents per token, alone or as `{price}`. */
const price = () => z.union([z.strictObject({ price: amount() }).transform(({ price: cents }) => cents), amount()]);

const pricingConfig = () =>
  z.strictObject({
    type: z.literal('static').default('static'),
    pay_as_you_go: z.strictObject(
      Object.fromEntries(priceComponents.map((name) => [name, price().optional()])) as Record<
        PriceComponent,
        z.ZodOptional<ReturnType<typeof price>>
      >,
    ),
  });

const modelName = () => text({ min: 1, max: 200 });

const integrationModel = () =>
  z.strictObject({
    slug: modelName(),
    name: text({ min: 1, max: 200 }).optional(),
    enabled: z.boolean(),
    is_custom: z.boolean().nullish(),
    is_finetune: z.boolean().nullish(),
    /** The base model, whose price applies to a fine-tuned model without its own. */
    base_model_slug: modelName().nullish(),
    pricing_config: pricingConfig().nullish(),
  });
export type IntegrationModel = z.output<ReturnType<typeof integrationModel>>;

/** Body of PUT /integrations/{slug}/models. Models that it does not name stay unchanged. */
export const SetModelsRequest = z.strictObject({
  models: z.array(integrationModel()).max(integrationLimits.atOnceMax).default([]),
  allow_all_models: z.boolean().optional(),
});

const access = {
  enabled: z.boolean(),
  usage_limits: usageLimits().nullish(),
  rate_limits: rateLimits().nullish(),
};

/** Body of PUT /integrations/{slug}/workspaces. Workspaces that it does not name stay unchanged. */
export const SetWorkspacesRequest = z.strictObject({
  workspaces: z
    .array(
      z.strictObject({
        id: text({ min: 1, max: 200 }),
        ...access,
        reset_usage: z.boolean().optional(),
        create_default_provider: z.boolean().optional(),
        default_provider_slug: slug().optional(),
      }),
    )
    .max(integrationLimits.atOnceMax)
    .default([]),
  global_workspace_access: z.strictObject(access).nullish(),
  override_existing_workspace_access: z.boolean().default(false),
  override_existing_workspaces_access: z.boolean().optional().describe('The same, as spelled by the Portkey client.'),
  create_default_provider: z.boolean().default(true),
  default_provider_slug: slug().optional(),
});

const AccessObject = z.object({
  enabled: z.boolean(),
  usage_limits: z.array(anyObject()).nullable(),
  rate_limits: z.array(anyObject()).nullable(),
});

/** An integration as clients see it, without its key. */
export const IntegrationObject = z.object({
  id: z.string(),
  object: z.literal('integration'),
  organisation_id: z.string(),
  workspace_id: z.string().nullable().describe('Null if it belongs to the organisation.'),
  ai_provider_id: z.string(),
  name: z.string(),
  slug: z.string(),
  description: z.string().nullable(),
  status: z.enum(['active', 'archived']),
  masked_key: z.string(),
  configurations: anyObject(),
  secret_mappings: z.array(SecretMappingObject),
  global_workspace_access_settings: AccessObject,
  allow_all_models: z.boolean(),
  share_stored_objects: z
    .boolean()
    .describe('Whether workspaces can use objects that other workspaces stored at the provider.'),
  workspace_count: z.int().describe('Workspaces that it is individually shared with.'),
  pricing_adjustments: anyObject().nullable(),
  created_at: z.iso.datetime(),
  last_updated_at: z.iso.datetime(),
});

export const ModelsObject = z.object({
  total: z.int(),
  allow_all_models: z.boolean(),
  models: z.array(
    z.object({
      slug: z.string(),
      name: z.string(),
      enabled: z.boolean(),
      is_custom: z.boolean(),
      is_finetune: z.boolean(),
      base_model_slug: z.string().nullable(),
      pricing_config: anyObject().nullable(),
    }),
  ),
});

export const WorkspacesObject = z.object({
  total: z.int(),
  workspaces: z.array(AccessObject.extend({ id: z.string() })),
  global_workspace_access: AccessObject,
});

/** Members of the body of POST /providers. */
export const providerFields = {
  name: text({ min: 1, max: 200 }),
  integration_id: text({ min: 1, max: 200 }),
  note: text({ max: 2_000 }).nullish(),
  usage_limits: usageLimit().nullish(),
  rate_limits: rateLimits().nullish(),
  expires_at: timestamp().nullish(),
};

/** Additional members of PUT: the use of a budget restarts at 0. */
export const providerUpdateFields = { reset_usage: z.boolean().optional() };

/** A provider in answers. */
export const ProviderObject = z.object({
  id: z.string(),
  object: z.literal('provider'),
  slug: z.string(),
  name: z.string(),
  workspace_id: z.string(),
  integration_id: z.string(),
  ai_provider_id: z.string(),
  note: z.string().nullable(),
  status: z
    .enum(['active', 'exhausted', 'expired', 'deleted', 'integration_deleted', 'integration_not_shared'])
    .describe('`integration_…` if calls are rejected with this code.'),
  usage_limits: anyObject().nullable(),
  rate_limits: z.array(anyObject()).nullable(),
  reset_usage: z.null(),
  expires_at: z.iso.datetime().nullable(),
  created_at: z.iso.datetime(),
  last_updated_at: z.iso.datetime(),
});
