import type { Provider, SettingForm } from './provider.ts';

/**
 * The settings of all providers, in their order. A setting that several providers accept means the same for each of them.
 * @testOnly
 */
export function collectSettingForms(providers: readonly Provider[]): Readonly<Record<string, SettingForm>> {
  const forms: Record<string, SettingForm> = {};
  for (const { settings = {} } of providers) {
    for (const [name, { secret, json, authenticates, alias, portkeyName, ofDeployment }] of Object.entries(settings)) {
      forms[name] ??= {
        ...(secret && { secret }),
        ...(json && { json }),
        ...(authenticates && { authenticates }),
        ...(alias === undefined ? {} : { alias }),
        ...(portkeyName === undefined ? {} : { portkeyName }),
        ...(ofDeployment === undefined ? {} : { ofDeployment }),
      };
    }
  }
  return forms;
}

/**
 * The headers of all providers, without duplicates.
 *
 * @testOnly
 */
export const collectCredentialHeaders = (providers: readonly Provider[]): string[] => [
  ...new Set(providers.flatMap(({ credentialHeaders = [] }) => credentialHeaders)),
];

/** The text of libs/providers/setting-fields.ts, as the formatter has it. */
export function toSettingFieldsModule(providers: readonly Provider[]): string {
  const literal = (value: string | boolean): string => (typeof value === 'string' ? `'${value}'` : String(value));
  const fields = Object.entries(collectSettingForms(providers)).map(([name, form]) => {
    const facts = Object.entries(form).map(([fact, value]) => `${fact}: ${literal(value)}`);
    return `  ${name}: ${facts.length === 0 ? '{}' : `{ ${facts.join(', ')} }`},`;
  });
  const headers = collectCredentialHeaders(providers).map((header) => `  ${literal(header)},`);
  return [
    '// Made by `npm run generate` from the providers’ folders; a test compares it with them. It is plain data, because',
    '// contracts also run in browsers, which cannot load the adapters.',
    '',
    '/** The settings of all providers by their names in virtual keys and configs. */',
    'export const settingFields = {',
    ...fields,
    '} as const;',
    '',
    '/** Headers that hold a provider’s credential; one that ends with a hyphen is a prefix. */',
    'export const credentialHeaders = [',
    ...headers,
    '] as const;',
    '',
  ].join('\n');
}
