import { isDeepStrictEqual } from 'node:util';
import { readDocument } from '#libs/access/config-document.ts';
import { joinSecrets, redactSecrets, splitSecrets } from '#libs/access/config-secrets.ts';
import { planOfStored } from '#libs/access/read-config.ts';
import { SecretUnreadableError, type SecretMembers } from '#libs/access/secrets.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { ConfigObject, configFields } from '#libs/contracts/configs.ts';
import { toUnixSeconds } from '#libs/kernel/clock.ts';
import { defineResource, type CheckContext } from './define-resource.ts';

type Document = Record<string, unknown>;

/** As its author wrote it, without its secrets, which are encrypted under the id of the version. */
type ConfigData = { name: string; config: Document; config_version: number };

export type LiveConfig = {
  readonly id: string;
  readonly workspaceId: string;
  readonly slug: string;
  readonly configVersion: number;
  /** Decrypted, for what goes by this version for long; by their places (libs/access/config-secrets.ts). */
  readonly secrets: SecretMembers;
  /** Compiled when first asked for; null when this process cannot read it (a newer release stored it). */
  readonly plan: () => Plan | null;
};

/** Where calls go and what happens around them. A change of the document is a new version; batches keep theirs. */
export const configKind = defineResource<typeof configFields, ConfigData, LiveConfig>({
  noun: 'config',
  idPrefix: 'config_',
  area: 'configs',
  path: '/v1/configs',
  names: { one: 'config', many: 'configs', tag: 'Configs' },
  fields: configFields,
  slug: true,
  versioned: {
    fields: ['config'],
    publish: 'at_once',
    shown: ({ config = {} }) => ({ config: redactSecrets(config) }),
  },

  async check({ name, config }, context) {
    const data = name === undefined ? {} : { name };
    if (config === undefined) return { data };
    const document = readDocument(config, 'config', context.checkDestination);
    if (isDeepStrictEqual(document, await wholeOf(context))) return { data };
    const { document: open, secrets } = splitSecrets(document);
    return { data: { ...data, config: open }, secrets };
  },

  view: ({ id, slug, data, created_at, updated_at, deleted_at }) => ({
    id,
    object: 'config',
    slug,
    name: data.name,
    version: data.config_version,
    status: deleted_at ? 'deleted' : 'active',
    config: redactSecrets(data.config),
    created_at: toUnixSeconds(created_at),
    updated_at: toUnixSeconds(updated_at),
  }),
  viewSchema: ConfigObject,

  cached: {
    toEntry({ id, workspace_id: workspaceId, slug, data }, secrets, logger) {
      const { config, config_version: configVersion } = data;
      let made: Plan | null | undefined;
      const plan = (): Plan | null => {
        if (made !== undefined) return made;
        const whole = secrets && joinSecrets(config, secrets);
        made = whole && planOfStored(whole);
        if (made === null) {
          logger.error({ config_id: id, config_version: configVersion }, 'a stored config cannot be read');
        }
        return made;
      };
      return { id, workspaceId, slug: slug ?? id, configVersion, secrets: secrets ?? {}, plan };
    },
  },
});

/** null for none yet, and when its secrets cannot be read: then no document is the one that is stored. */
async function wholeOf({ row, readSecrets }: CheckContext<ConfigData>): Promise<Document | null> {
  if (row === null) return null;
  try {
    return joinSecrets(row.data.config, await readSecrets());
  } catch (error) {
    if (error instanceof SecretUnreadableError) return null;
    throw error;
  }
}
