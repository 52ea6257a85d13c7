import { z } from 'zod';
import { addBreach, anyMetadata, anyObject, isStorable, text } from './scalars.ts';

// A secret reference describes where a credential is stored outside of Sluice. A mapping reads a credential from there.

export const managerTypes = ['hashicorp_vault', 'aws_sm', 'azure_kv', 'environment', 'file'] as const;
export type ManagerType = (typeof managerTypes)[number];

export const secretReferenceLimits = {
  ofOwnerMax: 500,
  workspacesMax: 1_000,
  hostsMax: 100,
  secretKeysMax: 100,
  mappingsMax: 20,
};

const secretName = () => text({ min: 1, max: 255 });

/** Members of the body of POST /secret-references. The members of `auth_config` depend on the manager. */
export const secretReferenceFields = {
  name: text({ min: 1, max: 255 }),
  description: text({ max: 1_024 }).nullish(),
  manager_type: z.enum(managerTypes),
  auth_config: anyObject().optional(),
  secret_path: text({ min: 1, max: 1_024 }),
  secret_key: secretName().nullish(),
  allowed_secret_keys: z
    .array(secretName())
    .max(secretReferenceLimits.secretKeysMax)
    .optional()
    .describe('Members of the secret, in addition to secret_key, that mappings of a workspace can use.'),
  allow_all_workspaces: z.boolean().optional(),
  allowed_workspaces: z
    .array(text({ min: 1, max: 200 }))
    .max(secretReferenceLimits.workspacesMax)
    .optional(),
  allowed_hosts: z
    .array(text({ min: 1, max: 300 }))
    .max(secretReferenceLimits.hostsMax)
    .optional()
    .describe(
      'Servers that a workspace can send the secret to, in addition to those of the providers, such as https://llm.example.com.',
    ),
  tags: anyMetadata().nullish(),
};

/** The filter `tags`: `team:search,stage:live`, or a JSON object of texts. */
export const tagsFilter = () =>
  z
    .string()
    .max(2_000)
    .transform((value, context): Record<string, string> => {
      const tags = value.trimStart().startsWith('{') ? jsonTags(value) : pairTags(value);
      if (tags !== null) return tags;
      addBreach(context, {
        path: [],
        code: 'invalid_value',
        text: (name) =>
          `Invalid ${name()}: expected tags like team:search,stage:live, or a JSON object of strings without U+0000.`,
      });
      return z.NEVER;
    });

function jsonTags(value: string): Record<string, string> | null {
  try {
    const storable = z.string().refine(isStorable);
    const parsed = z.record(storable, storable).safeParse(JSON.parse(value));
    return parsed.success ? parsed.data : null;
  } catch {
    return null;
  }
}

function pairTags(value: string): Record<string, string> | null {
  const pairs = value.split(',').map((pair) => pair.split(':').map((part) => part.trim()));
  const isValid = pairs.every(([name, tag, ...more]) => name && tag !== undefined && more.length === 0);
  return isValid ? (Object.fromEntries(pairs) as Record<string, string>) : null;
}

const secretText = () => text({ min: 1, max: 16_384 });
const settingText = () => text({ min: 1, max: 2_048 });

const vault = {
  vault_addr: settingText(),
  vault_namespace: text({ min: 1, max: 255 }).optional(),
  vault_auth_mount: text({ min: 1, max: 255 }).optional(),
};

/** Ways to authenticate at a manager: the member that selects one, and the members of each. */
type AuthForm = { schema: z.ZodObject; secrets: readonly string[] };
type AuthForms = { member: string; forms: Readonly<Record<string, AuthForm>> };

/** By manager; null: it needs no `auth_config`. */
export const authForms: Readonly<Record<ManagerType, AuthForms | null>> = {
  hashicorp_vault: {
    member: 'vault_auth_type',
    forms: {
      token: {
        schema: z.strictObject({
          vault_auth_type: z.literal('token'),
          vault_addr: vault.vault_addr,
          vault_namespace: vault.vault_namespace,
          vault_token: secretText(),
        }),
        secrets: ['vault_token'],
      },
      approle: {
        schema: z.strictObject({
          ...vault,
          vault_auth_type: z.literal('approle'),
          vault_role_id: settingText(),
          vault_secret_id: secretText(),
        }),
        secrets: ['vault_secret_id'],
      },
      kubernetes: {
        schema: z.strictObject({
          ...vault,
          vault_auth_type: z.literal('kubernetes'),
          vault_role: settingText(),
        }),
        secrets: [],
      },
    },
  },
  aws_sm: {
    member: 'aws_auth_type',
    forms: {
      accessKey: {
        schema: z.strictObject({
          aws_auth_type: z.literal('accessKey'),
          aws_access_key_id: settingText(),
          aws_secret_access_key: secretText(),
          aws_region: settingText(),
        }),
        secrets: ['aws_secret_access_key'],
      },
    },
  },
  azure_kv: {
    member: 'azure_auth_mode',
    forms: {
      entra: {
        schema: z.strictObject({
          azure_auth_mode: z.literal('entra'),
          azure_entra_tenant_id: settingText(),
          azure_entra_client_id: settingText(),
          azure_entra_client_secret: secretText(),
          azure_vault_url: settingText(),
        }),
        secrets: ['azure_entra_client_secret'],
      },
    },
  },
  environment: null,
  file: null,
};

/** A secret reference in answers; the secrets of `auth_config` are masked. */
export const SecretReferenceObject = z.object({
  id: z.string(),
  object: z.literal('secret-reference'),
  organisation_id: z.string(),
  workspace_id: z.string().nullable().describe('Null if it belongs to the organisation.'),
  name: z.string(),
  slug: z.string(),
  description: z.string().nullable(),
  manager_type: z.enum(managerTypes),
  auth_config: z.record(z.string(), z.string()),
  secret_path: z.string(),
  secret_key: z.string().nullable(),
  allowed_secret_keys: z.array(z.string()),
  allow_all_workspaces: z.boolean(),
  allowed_workspaces: z.array(z.string()),
  allowed_hosts: z.array(z.string()),
  tags: anyObject().nullable(),
  status: z.enum(['ACTIVE', 'DELETED']),
  created_by: z.string().nullable(),
  created_at: z.iso.datetime(),
  last_updated_at: z.iso.datetime(),
});

const mapping = () =>
  z.strictObject({
    target_field: text({ min: 1, max: 200 }),
    secret_reference_id: text({ min: 1, max: 200 }),
    secret_key: secretName().nullish(),
    value_format: z.enum(['json', 'string']).nullish(),
  });

/** `secret_mappings` of a credential: fields whose values are taken from secret references. */
export const secretMappings = () => z.array(mapping()).max(secretReferenceLimits.mappingsMax).nullish();

/** The same in stored form and in answers; `secret_reference_id` is the ID, whatever the request contained. */
export type SecretMapping = {
  target_field: string;
  secret_reference_id: string;
  secret_key: string | null;
  value_format: 'json' | 'string' | null;
};

export const SecretMappingObject = z.object({
  target_field: z.string(),
  secret_reference_id: z.string(),
  secret_key: z.string().nullable(),
  value_format: z.enum(['json', 'string']).nullable(),
});
