import { z } from 'zod';
import type { SettingForm } from '#libs/providers/provider.ts';
import { settingFields } from '#libs/providers/setting-fields.ts';
import { slug, timestamp } from './people/access-fields.ts';
import { rateLimits, usageLimit } from './people/limits.ts';
import { addBreach, anyObject, text } from './scalars.ts';
import { SecretMappingObject, secretMappings } from './secret-references.ts';

// A provider's own settings are members of a virtual key in addition to its `key`. They are declared in the provider's
// folder, from which libs/providers/setting-fields.ts is generated for use here.

type SettingName = keyof typeof settingFields;

const settings = Object.entries<SettingForm>(settingFields);

const namesWhere = (holds: (form: SettingForm) => unknown): readonly SettingName[] =>
  settings.filter(([, form]) => holds(form)).map(([name]) => name as SettingName);

/** The settings that can be shown again. */
export const settingNames = namesWhere(({ secret }) => !secret);
/** The settings that are stored encrypted, like `key`, and are never shown. */
export const secretNames = namesWhere(({ secret }) => secret);

const secretText = () => text({ min: 1, max: 16_384 });

function settingValue({ secret, json }: SettingForm): z.ZodType<string> {
  const value = secret ? secretText() : text({ min: 1, max: 2_048 });
  return json ? z.union([value, anyObject().transform((document) => JSON.stringify(document))]) : value;
}

const settingMembers = Object.fromEntries(
  settings.map(([name, form]) => [name, settingValue(form).optional()]),
) as Record<SettingName, z.ZodOptional<z.ZodType<string>>>;

// Checks only the form. Which hosts are allowed is decided where connections are opened.
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
        text: (name) => `Invalid ${name()}: expected an http or https URL without a user name, password or fragment.`,
      });
    });

/** In camel case, as in Portkey's documentation, and in snake case, as Portkey's clients send them. */
const spellingsOf = (name: string): string[] => [
  name,
  name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
];

/** The names under which clients of Portkey know settings, with the settings. */
export const portkeySettings: readonly (readonly [name: string, setting: SettingName])[] = settings.flatMap(
  ([setting, { portkeyName }]) =>
    portkeyName === undefined ? [] : spellingsOf(portkeyName).map((name) => [name, setting as SettingName] as const),
);

const portkeyMembers = (names = portkeySettings) =>
  Object.fromEntries(names.map(([name]) => [name, text({ min: 1, max: 2_048 }).nullish()]));

/** The settings that each of several deployments can have. */
export const deploymentSettings = portkeySettings.filter(
  ([, setting]) => (settingFields[setting] as SettingForm).ofDeployment !== undefined,
);

/** Deployments that one credential serves. A call's model selects one of them. */
const deployments = () =>
  z
    .array(
      z.strictObject({
        ...portkeyMembers(deploymentSettings),
        alias: text({ min: 1, max: 200 }).nullish(),
        is_default: z.boolean().nullish(),
      }),
    )
    .max(20)
    .nullish();

/** A deployment in answers. */
const DeploymentObject = z.object({
  deploymentName: z.string(),
  apiVersion: z.string().optional(),
  alias: z.string().optional(),
  is_default: z.boolean(),
});

/**
 * Members of the body of POST /virtual-keys. `key` is required unless the provider's own settings or `secret_mappings`
 * contain the credential.
 */
export const virtualKeyFields = {
  name: text({ min: 1, max: 200 }),
  provider: slug(),
  key: secretText().optional(),
  custom_host: customHost().optional(),
  note: text({ max: 2_000 }).nullish(),
  expires_at: timestamp().nullish(),
  usage_limits: usageLimit().nullish(),
  rate_limits: rateLimits().nullish(),
  secret_mappings: secretMappings(),
  ...settingMembers,
  ...portkeyMembers(),
  deploymentConfig: deployments(),
  deployment_config: deployments(),
};

/** The provider's own settings and address, which an integration has in one member. */
export const providerConfiguration = () =>
  z.strictObject({
    custom_host: customHost().nullish(),
    ...settingMembers,
    ...portkeyMembers(),
    deploymentConfig: deployments(),
    deployment_config: deployments(),
  });

/** The credential of a provider, or a part of one. */
export const credentialText = secretText;

/**
 * Members that have another form in PUT, or exist only there: `custom_host` null for the provider's own address;
 * `reset_usage`: the use of the budget in the current period restarts at 0.
 */
export const virtualKeyUpdateFields = { custom_host: customHost().nullish(), reset_usage: z.boolean().optional() };

/** A virtual key in answers: settings that are not secret, and never the key. */
export const VirtualKeyObject = z.object({
  id: z.string(),
  object: z.literal('virtual-key'),
  slug: z.string(),
  name: z.string(),
  workspace_id: z.string(),
  provider: z.string(),
  ai_provider_name: z.string(),
  last_four: z.string(),
  custom_host: z.string().nullable(),
  note: z.string().nullable(),
  /** `exhausted`: its budget is used up in this period. */
  status: z.enum(['active', 'exhausted', 'expired', 'deleted']),
  settings: z.record(z.string(), z.string()),
  model_config: anyObject(),
  /** Absent for a key without a list of deployments. */
  deploymentConfig: z.array(DeploymentObject).optional(),
  secret_mappings: z.array(SecretMappingObject),
  usage_limits: anyObject().nullable(),
  rate_limits: z.array(anyObject()).nullable(),
  /** When its use was last reset manually. */
  usage_reset_at: z.iso.datetime().nullable(),
  created_at: z.iso.datetime(),
  last_updated_at: z.iso.datetime(),
  updated_at: z.iso.datetime(),
  expires_at: z.iso.datetime().nullable(),
});
