import { z } from 'zod';
import type { SettingForm } from '#libs/providers/provider.ts';
import { settingFields } from '#libs/providers/setting-fields.ts';
import { slug, timestamp } from './access-fields.ts';
import { listOf } from './lists.ts';
import { addBreach, anyObject, text } from './scalars.ts';

// A provider's own settings are members of a virtual key beside its `key`. They are declared in the provider's folder; what
// is known of them here is made from there (libs/providers/setting-fields.ts).

type SettingName = keyof typeof settingFields;

const settings = Object.entries<SettingForm>(settingFields);

const namesWhere = (holds: (form: SettingForm) => unknown): readonly SettingName[] =>
  settings.filter(([, form]) => holds(form)).map(([name]) => name as SettingName);

/** The settings that may be shown again. */
export const settingNames = namesWhere(({ secret }) => !secret);
/** The settings that are stored encrypted, as `key` is, and are never shown. */
export const secretNames = namesWhere(({ secret }) => secret);

const secretText = () => text({ min: 1, max: 16_384 });

function settingValue({ secret, json }: SettingForm): z.ZodType<string> {
  const value = secret ? secretText() : text({ min: 1, max: 2_048 });
  return json ? z.union([value, anyObject().transform((document) => JSON.stringify(document))]) : value;
}

const settingMembers = Object.fromEntries(
  settings.map(([name, form]) => [name, settingValue(form).optional()]),
) as Record<SettingName, z.ZodOptional<z.ZodType<string>>>;

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
  ...settingMembers,
};

// Any of these authenticates by itself, without a `key`.
const keyless = namesWhere(({ authenticates }) => authenticates);

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
