import { z } from 'zod';
import { slug, timestamp } from './access-fields.ts';
import { listOf } from './lists.ts';
import { addBreach, anyObject, text } from './scalars.ts';

// A provider's own settings have the names of their headers in snake case (CONF-6).

const shortText = () => text({ min: 1, max: 2_048 });

const openSettings = {
  openai_organization: shortText().optional(),
  openai_project: shortText().optional(),
  openai_beta: shortText().optional(),
  anthropic_beta: shortText().optional(),
  anthropic_version: shortText().optional(),
  azure_resource_name: shortText().optional(),
  azure_deployment_id: shortText().optional(),
  azure_api_version: shortText().optional(),
  azure_model_name: shortText().optional(),
  azure_auth_mode: shortText().optional(),
  azure_managed_client_id: shortText().optional(),
  azure_workload_client_id: shortText().optional(),
  azure_entra_client_id: shortText().optional(),
  azure_entra_tenant_id: shortText().optional(),
  azure_entra_scope: shortText().optional(),
  azure_foundry_url: shortText().optional(),
  azure_endpoint_name: shortText().optional(),
  aws_region: shortText().optional(),
  aws_access_key_id: shortText().optional(),
  aws_role_arn: shortText().optional(),
  aws_external_id: shortText().optional(),
  aws_auth_type: shortText().optional(),
  aws_s3_bucket: shortText().optional(),
  aws_bedrock_model: shortText().optional(),
  vertex_project_id: shortText().optional(),
  vertex_region: shortText().optional(),
  vertex_storage_bucket_name: shortText().optional(),
  fireworks_account_id: shortText().optional(),
  huggingface_base_url: shortText().optional(),
  workers_ai_account_id: shortText().optional(),
  snowflake_account: shortText().optional(),
};

const secretText = () => text({ min: 1, max: 16_384 });

const secretSettings = {
  azure_ad_token: secretText().optional(),
  azure_entra_client_secret: secretText().optional(),
  aws_secret_access_key: secretText().optional(),
  aws_session_token: secretText().optional(),
  /** The key file of a service account: its text, or the object itself. */
  vertex_service_account_json: z
    .union([secretText(), anyObject().transform((account) => JSON.stringify(account))])
    .optional(),
};

/** The settings that may be shown again. */
export const virtualKeySettingNames = Object.keys(openSettings) as (keyof typeof openSettings)[];
/** The settings that are stored encrypted, as `key` is, and are never shown. */
export const virtualKeySecretNames = Object.keys(secretSettings) as (keyof typeof secretSettings)[];

// Shape only: which hosts may be reached is decided where connections are opened.
const customHost = () =>
  z
    .string()
    .max(2_048)
    .check((context) => {
      const url = URL.canParse(context.value) ? new URL(context.value) : null;
      const usable =
        url !== null && /^https?:$/.test(url.protocol) && url.username === '' && url.password === '' && url.hash === '';
      if (usable) return;
      addBreach(context, {
        path: [],
        code: 'invalid_value',
        text: (name) => `Invalid ${name()}: expected an http or https URL without user name, password and fragment.`,
      });
    });

const common = {
  note: text({ max: 2_000 }).nullish(),
  expires_at: timestamp().nullish(),
  ...openSettings,
  ...secretSettings,
};

// Any of these authenticates by itself, without a `key`.
const keyless = [
  'aws_secret_access_key',
  'aws_role_arn',
  'vertex_service_account_json',
  'azure_ad_token',
  'azure_auth_mode',
] as const;

/** Body of POST /virtual-keys. `key` is needed unless the provider's own settings hold the credential. */
export const CreateVirtualKeyRequest = z
  .strictObject({
    name: text({ min: 1, max: 200 }),
    provider: slug(),
    key: secretText().optional(),
    slug: slug().optional(),
    custom_host: customHost().optional(),
    ...common,
  })
  .check((context) => {
    if (context.value.key !== undefined || keyless.some((setting) => context.value[setting] !== undefined)) return;
    addBreach(context, {
      path: ['key'],
      code: 'missing_required_parameter',
      text: (name) => `Missing required parameter: ${name()}.`,
    });
  });
export type CreateVirtualKeyRequest = z.output<typeof CreateVirtualKeyRequest>;

/** Body of PUT /virtual-keys/{slug}: what is absent stays. Provider and slug are for the life of the key. */
export const UpdateVirtualKeyRequest = z.strictObject({
  name: text({ min: 1, max: 200 }).optional(),
  key: secretText().optional(),
  custom_host: customHost().nullish(),
  ...common,
});
export type UpdateVirtualKeyRequest = z.output<typeof UpdateVirtualKeyRequest>;

/** A virtual key as it is answered: settings that are no secrets, and never the key. */
export const VirtualKeyObject = z.object({
  id: z.string(),
  object: z.literal('virtual-key'),
  slug: z.string(),
  name: z.string(),
  provider: z.string(),
  last_four: z.string(),
  custom_host: z.string().nullable(),
  note: z.string().nullable(),
  status: z.enum(['active', 'expired', 'deleted']),
  settings: z.record(z.string(), z.string()),
  created_at: z.int(),
  updated_at: z.int(),
  expires_at: z.int().nullable(),
});
export type VirtualKeyObject = z.output<typeof VirtualKeyObject>;

export const VirtualKeyList = listOf(VirtualKeyObject);
