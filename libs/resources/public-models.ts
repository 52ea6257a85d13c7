import { isDeepStrictEqual } from 'node:util';
import { sql } from 'kysely';
import { configLimits } from '#libs/contracts/configs/config.ts';
import {
  PublicModelObject,
  publicModelFields,
  routingMembers,
  toModelConfig,
  type PublicModelDocument,
  type PublicModelRouting,
} from '#libs/contracts/configs/public-models.ts';
import {
  guardrailLists,
  joinSecrets,
  redactSecrets,
  splitSecrets,
  webhookMember,
} from '#libs/credentials/configs/config-secrets.ts';
import { readDocument } from '#libs/credentials/configs/config-document.ts';
import type { PublicModel } from '#libs/credentials/configs/public-models.ts';
import { compileStoredConfig } from '#libs/credentials/configs/read-config.ts';
import { isOpenLeaf } from '#libs/credentials/resolve.ts';
import type { Plan } from '#libs/calls/plan/plan.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createOwnPrice } from '#libs/prices/price-table.ts';
import { asJson, type ResourceRow } from '#libs/records/resource-row.ts';
import { authorsOf } from '#libs/records/resource-view.ts';
import { defineKind, recordsLimit, type CheckContext } from '#libs/resources/define-kind.ts';
import { requireGuardrails } from './guardrails.ts';

/** The routing is as its author wrote it, but without its secrets, which are encrypted. */
type PublicModelData = PublicModelDocument;

/**
 * A name that clients send as their model, and the targets that serve it. It belongs to one workspace, or to the
 * organisation for all workspaces.
 */
export const publicModelKind = defineKind<typeof publicModelFields, PublicModelData, PublicModel>({
  noun: 'model',
  idPrefix: 'model_',
  area: 'public_models',
  texts: {
    create: {
      description:
        'Clients send the name as `model`, without naming a provider, and the targets serve it. The routing has the members of a config.',
      example: {
        name: 'gpt-4o',
        targets: [{ provider: '@main' }, { provider: '@spare', model: 'gpt-4o-2024-11-20' }],
      },
      errors: { model_name_taken: 'another public model of the same owner has this name' },
    },
    update: {
      description: 'Applies to new calls, and to batch lines that are not called yet, immediately.',
      example: { retry: { attempts: 2 } },
      errors: {
        model_name_taken: 'another public model of the same owner has this name',
        model_unreadable: 'the stored secrets cannot be decrypted: send all targets again',
      },
    },
    delete: { description: 'New calls with the name are rejected with `model_not_found`.' },
  },
  path: '/v1/public-models',
  names: {
    one: 'public model',
    many: 'public models',
    tag: 'Public models',
    about: 'Names that clients send as their model, and the targets that serve them.',
    object: 'public-model',
  },
  shared: {
    with: (workspaceId) =>
      sql`(data -> 'allowed' -> 'workspaces' is null or data -> 'allowed' -> 'workspaces' ? ${workspaceId})`,
  },
  fields: publicModelFields,
  applied: {
    refersTo: { virtual_key: null, provider: null, guardrail: null },
    secrets: new RegExp(
      `^(?:targets/\\d+/)+(?:${guardrailLists.join('|')})/\\d+/(?:checks/\\d+/parameters|[^/]+)/${webhookMember}$`,
    ),
  },
  slugs: {},
  locks: (workspaceId) => [`model_names:${workspaceId}`],
  creation: { limit: recordsLimit },
  filters: { name: { schema: publicModelFields.name, field: 'name', match: 'equal' } },

  async check(input, context) {
    const { row, unit, workspaceId, checkDestination } = context;
    const { name = row?.data.name ?? '' } = input;
    if (name !== row?.data.name) await refuseTakenName(unit, workspaceId, name);
    const given = routingMembers.filter((member) => input[member] !== undefined);
    const before = await readRouting(context);
    if (before === null && row !== null && input.targets === undefined && given.length > 0)
      throw unreadableRouting(row);
    const routing = { ...before, ...pick(input, given) } as PublicModelRouting;
    const rest = asJson(Object.fromEntries(Object.entries(input).filter(([member]) => !isRouting(member))));
    if (row !== null && name === row.data.name && isDeepStrictEqual(asJson(routing), before)) return { data: rest };
    checkRouting(routing, name, checkDestination);
    await requireGuardrails(unit, workspaceId, routing, 'targets');
    const { document, secrets } = splitSecrets(asJson(routing));
    return { data: { ...rest, ...document }, secrets };
  },

  view(row) {
    const { workspace_id, data } = row;
    return {
      name: data.name,
      display_name: data.display_name ?? null,
      description: data.description ?? null,
      organisation_id: organisationId,
      workspace_id: workspace_id === organisationId ? null : workspace_id,
      ...shownRouting(data),
      capabilities: data.capabilities ?? null,
      price: data.price ?? null,
      allowed: data.allowed ?? null,
      ...authorsOf(row),
    };
  },
  viewSchema: PublicModelObject,

  cached: {
    keepsText: true,
    toEntry({ id, workspace_id: workspaceId, slug, data, version, created_at: createdAt }, secrets, { logger, plans }) {
      const { name, display_name: displayName, allowed, price } = data;
      const text = JSON.stringify(data);
      const cacheKey = {};
      const plan = (called: string, matched: string | null): Plan | null => {
        // The names that match a wildcard are unlimited, so the least recently used plans make room.
        const key = matched === null ? cacheKey : `model ${id} ${version} ${called}`;
        const cached = plans.find(key);
        if (cached !== undefined) return cached;
        const stored = JSON.parse(text) as PublicModelData;
        const whole = secrets && joinSecrets(pick(stored, routingMembers), secrets);
        const own = price ? createOwnPrice(price) : null;
        const config = whole && toModelConfig(whole as PublicModelRouting, called, matched);
        const compiled = config && compileStoredConfig(config as Record<string, unknown>, { name: called, price: own });
        if (compiled === null) logger.error({ model_id: id }, 'a stored public model cannot be read');
        plans.keep(key, text, compiled);
        return compiled;
      };
      return {
        slug: slug ?? id,
        workspaceId,
        name,
        displayName: displayName ?? name,
        createdAtMs: createdAt.getTime(),
        allowed: allowed ?? null,
        text,
        plan,
      };
    },
  },
});

const isRouting = (member: string): boolean => (routingMembers as readonly string[]).includes(member);

const pick = (from: object, members: readonly string[]): Record<string, unknown> =>
  Object.fromEntries(Object.entries(from).filter(([member, value]) => members.includes(member) && value !== undefined));

function shownRouting(data: PublicModelData): object {
  const shown = redactSecrets(pick(data, routingMembers));
  return Object.fromEntries(routingMembers.map((member) => [member, shown[member] ?? null]));
}

/** null for a new model, and if its secrets cannot be decrypted. */
async function readRouting({
  row,
  readSecrets,
}: CheckContext<PublicModelData>): Promise<Record<string, unknown> | null> {
  const secrets = row && (await readSecrets());
  return row && secrets && joinSecrets(pick(row.data, routingMembers), secrets);
}

/**
 * Checks the routing as the config that it stands for. Throws invalid_request with the member at fault, also for a target
 * without a destination that would call the model itself.
 */
function checkRouting(routing: PublicModelRouting, name: string, checkDestination: (url: URL) => void): void {
  checkModels(routing.targets, 'targets');
  const config = toModelConfig(routing, name, null);
  let plan: Plan;
  try {
    readDocument(config, 'model', checkDestination);
    plan = compileStoredConfig(config as Record<string, unknown>) as Plan;
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    const { kind, code, message, param } = error;
    const shown = message.replaceAll(/'model\.(?=[a-z])/g, "'");
    throw new GatewayError(kind, code, shown, { param: param?.replace(/^model\./, '') ?? null, cause: error });
  }
  const own = plan.leaves.find((leaf) => isOpenLeaf(leaf) && leaf.overrides.get('model') === JSON.stringify(name));
  if (own === undefined) return;
  const param = own.path.slice('config.'.length);
  const message = `Invalid '${param}': expected a destination. Set 'provider' to '@' and the slug of a virtual key or provider, or set 'model' to the name of another public model.`;
  throw new GatewayError('invalid_request', 'missing_required_parameter', message, { param });
}

/**
 * Checks the `model` of each target, which the config does not have. The depth of the targets is checked later, with the
 * limits of configs.
 */
function checkModels(targets: unknown, param: string, depth = 0): void {
  if (!Array.isArray(targets) || depth > configLimits.depthMax) return;
  for (const [index, target] of targets.entries()) {
    const { model, override_params: params, targets: inner } = (target ?? {}) as Record<string, unknown>;
    const at = `${param}[${index}]`;
    if (model !== undefined && (typeof model !== 'string' || model === '' || model.length > modelLengthMax)) {
      throw invalidModel(at, `expected the name of a model with at most ${modelLengthMax} characters.`);
    }
    if (model !== undefined && typeof params === 'object' && params !== null && 'model' in params) {
      throw invalidModel(at, "the model is also set in 'override_params'. Set only one of them.");
    }
    checkModels(inner, `${at}.targets`, depth + 1);
  }
}

const modelLengthMax = 500;

const invalidModel = (at: string, what: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${at}.model': ${what}`, { param: `${at}.model` });

/** Throws conflict for a name that another active model of the owner has. The caller holds the lock for the names. */
async function refuseTakenName({ tx }: Pick<UnitOfWork, 'tx'>, workspaceId: string, name: string): Promise<void> {
  const { rows } = await sql<{ slug: string }>`
    select slug from resource
    where kind = 'model' and workspace_id = ${workspaceId} and deleted_at is null and data ->> 'name' = ${name}
    limit 1`.execute(tx);
  if (rows[0] === undefined) return;
  const message = `The public model '${rows[0].slug}' already has the name '${name}'. Choose another name, or update that model with PUT.`;
  throw new GatewayError('conflict', 'model_name_taken', message, { param: 'name' });
}

const unreadableRouting = ({ slug, id }: ResourceRow<PublicModelData>): GatewayError => {
  const message = `The secrets of the public model '${slug ?? id}' cannot be decrypted. Send its targets again, with their secrets.`;
  return new GatewayError('conflict', 'model_unreadable', message, { param: 'targets' });
};
