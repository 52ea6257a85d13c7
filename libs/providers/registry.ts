import { providers } from './provider-list.ts';
import type { Provider } from './provider.ts';

const byName: ReadonlyMap<string, Provider> = new Map(
  providers.flatMap((provider) => [provider.id, ...(provider.aliases ?? [])].map((name) => [name, provider])),
);

/** The provider with that id or alias (the value of `x-gateway-provider`), or undefined. */
export const findProvider = (name: string): Provider | undefined => byName.get(name);

export const providerIds: readonly string[] = providers.map(({ id }) => id);

/** The ids of the providers that accept this setting. */
export const providersWith = (setting: string): string[] =>
  providers.flatMap(({ id, settings = {} }) => (Object.hasOwn(settings, setting) ? [id] : []));
