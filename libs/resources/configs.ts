import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import { readDocument } from '#libs/credentials/configs/config-document.ts';
import {
  guardrailLists,
  joinSecrets,
  redactSecrets,
  splitSecrets,
  webhookMember,
} from '#libs/credentials/configs/config-secrets.ts';
import { compileStoredConfig } from '#libs/credentials/configs/read-config.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import { ConfigObject, configFields, configVersionFields } from '#libs/contracts/configs/configs.ts';
import { organisationId } from '#libs/http/caller.ts';
import { defineKind, recordsLimit, type CheckContext } from '#libs/resources/define-kind.ts';
import { requireGuardrails } from './guardrails.ts';
import { versionId } from '#libs/records/traits/versions.ts';
import { authorsOf } from '#libs/records/resource-view.ts';

const secretInConfig = { secret_in_config: 'the config contains a credential: store it in a virtual key instead' };

type Document = Record<string, unknown>;

/** As its author wrote it, but without its secrets, which are encrypted under the ID of the version. */
type ConfigData = {
  name: string;
  config: Document;
  config_version: number;
  /** Stored for Portkey's clients; calls do not depend on it. */
  is_default?: boolean;
};

export type LiveConfig = {
  readonly id: string;
  readonly workspaceId: string;
  readonly slug: string;
  readonly configVersion: number;
  /**
   * The decrypted secrets by their positions, for users of this version that run for a long time
   * (libs/credentials/configs/config-secrets.ts).
   */
  readonly secrets: SecretMembers;
  /** Compiled if it is not in the plan cache; null if this process cannot read it (a newer release stored it). */
  readonly plan: () => Plan | null;
};

/**
 * Where calls are sent and how they are processed. A change of the document creates a new version; batches keep the version
 * that they started with.
 */
export const configKind = defineKind<typeof configFields, ConfigData, LiveConfig>({
  noun: 'config',
  idPrefix: 'config_',
  area: 'configs',
  texts: {
    create: {
      description:
        'Defines where calls go and how they are handled. Calls select the config with its slug in `x-gateway-config`.',
      example: {
        name: 'Support',
        config: { strategy: { mode: 'fallback' }, targets: [{ virtual_key: 'main' }, { virtual_key: 'spare' }] },
      },
      errors: secretInConfig,
    },
    update: {
      description: 'New calls use the latest version. Batches that have started keep their version.',
      example: { config: { retry: { attempts: 3 }, targets: [{ virtual_key: 'main' }] } },
      errors: secretInConfig,
    },
    delete: { description: 'New calls that name the config are rejected. Batches that have started keep it.' },
  },
  path: '/v1/configs',
  names: {
    one: 'config',
    many: 'configs',
    tag: 'Configs',
    about: 'Where calls go and how they are handled: fallbacks, retries, caching and guardrails.',
  },
  fields: configFields,
  applied: {
    refersTo: { virtual_key: null, provider: null, guardrail: null },
    secrets: new RegExp(
      `^config(?:/targets/\\d+)*/(?:${guardrailLists.join('|')})/\\d+/(?:checks/\\d+/parameters|[^/]+)/${webhookMember}$`,
    ),
  },
  slugs: {},
  creation: { limit: recordsLimit },
  versions: {
    fields: ['config'],
    publish: 'at_once',
    shown: ({ config = {} }, head, version) => ({
      config: redactSecrets(config),
      name: head.data.name,
      organisation_id: organisationId,
      workspace_id: head.workspace_id,
      is_default: head.data.is_default ? 1 : 0,
      version_id: version.id,
      status: version.number === head.data.config_version ? 'active' : 'archived',
      format: 'json',
      type: 'config',
      ...authorsOf(head),
      last_updated_at: version.created_at.toISOString(),
    }),
    shownSchema: configVersionFields,
  },

  async check({ name, config, isDefault, is_default: isDefaultToo = isDefault }, context) {
    const data = {
      ...(name === undefined ? {} : { name }),
      ...(isDefaultToo === undefined ? {} : { is_default: Boolean(isDefaultToo) }),
    };
    if (config === undefined) return { data };
    const document = readDocument(config, 'config', context.checkDestination);
    if (isDeepStrictEqual(document, await wholeOf(context))) return { data };
    await requireGuardrails(context.unit, context.workspaceId, document, 'config');
    const { document: open, secrets } = splitSecrets(document);
    return { data: { ...data, config: open }, secrets };
  },

  changes: { fields: { status: z.literal('active').optional() } },
  view(row) {
    const { id, workspace_id, data, updated_at, deleted_at } = row;
    return {
      name: data.name,
      organisation_id: organisationId,
      workspace_id,
      is_default: data.is_default ? 1 : 0,
      version: data.config_version,
      version_id: versionId(id, data.config_version),
      status: deleted_at ? 'deleted' : 'active',
      config: redactSecrets(data.config),
      format: 'json',
      ...authorsOf(row),
      updated_at: updated_at.toISOString(),
    };
  },
  viewSchema: ConfigObject,
  portkey: { data: ({ id, slug, version_id, config }) => ({ id, slug, version_id, config }) },

  cached: {
    keepsText: true,
    toEntry({ id, workspace_id: workspaceId, slug, data }, secrets, { logger, plans }) {
      const { config_version: configVersion } = data;
      const text = JSON.stringify(data.config);
      const cacheKey = {};
      const plan = (): Plan | null => {
        const cached = plans.find(cacheKey);
        if (cached !== undefined) return cached;
        const whole = secrets && joinSecrets(JSON.parse(text) as Document, secrets);
        const compiled = whole && compileStoredConfig(whole);
        if (compiled === null) {
          logger.error({ config_id: id, config_version: configVersion }, 'a stored config cannot be read');
        }
        plans.keep(cacheKey, text, compiled);
        return compiled;
      };
      return { id, workspaceId, slug: slug ?? id, configVersion, secrets: secrets ?? {}, plan };
    },
  },
});

/** Returns null for a new config, and if its secrets cannot be read: then no document equals the stored one. */
async function wholeOf({ row, readSecrets }: CheckContext<ConfigData>): Promise<Document | null> {
  const secrets = row && (await readSecrets());
  return row && secrets && joinSecrets(row.data.config, secrets);
}
