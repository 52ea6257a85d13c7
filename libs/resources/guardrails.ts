import { isDeepStrictEqual } from 'node:util';
import { sql } from 'kysely';
import {
  guardrailFields,
  GuardrailObject,
  toStoredGuardrail,
  type Guardrail,
  type GuardrailDocument,
} from '#libs/contracts/configs/guardrails.ts';
import { organisationId } from '#libs/http/caller.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { defineKind, recordsLimit, type CheckContext } from '#libs/resources/define-kind.ts';
import { idOfName, ofWorkspaceOrShared } from '#libs/records/find-by-name.ts';
import { versionId } from '#libs/records/traits/versions.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { authorsOf } from '#libs/records/resource-view.ts';
import { readDocument } from '#libs/credentials/configs/config-document.ts';
import { joinSecrets, redactSecrets, splitSecrets, webhookMember } from '#libs/credentials/configs/config-secrets.ts';
import { guardrailNamesIn } from '#libs/credentials/configs/guardrail-names.ts';
import { noSuchGuardrail } from '#libs/credentials/not-found.ts';

/**
 * The documents are as their author wrote them, but without their secrets, which are encrypted under the ID of the version.
 */
type GuardrailData = GuardrailDocument & {
  name: string;
  guardrail_version: number;
};

export type LiveGuardrail = {
  readonly slug: string;
  /** null if this process cannot read it: a newer release stored it, or its secrets cannot be decrypted. */
  readonly guardrail: Guardrail | null;
};

/**
 * A named guardrail for configs, keys and workspaces. It belongs to one workspace, or to the organisation for all
 * workspaces. Changing its checks or actions creates a new version.
 */
export const guardrailKind = defineKind<typeof guardrailFields, GuardrailData, LiveGuardrail>({
  noun: 'guardrail',
  idPrefix: 'guardrail_',
  area: 'guardrails',
  texts: {
    create: {
      description: 'Checks of requests or answers. Configs and workspaces refer to guardrails by slug.',
      example: {
        name: 'No passwords',
        checks: [{ id: 'default.contains', parameters: { operator: 'none', words: ['password'] } }],
        actions: { deny: true },
      },
    },
    update: {
      description: 'Applies to new calls immediately.',
      example: { actions: { deny: false } },
      errors: { guardrail_unreadable: 'the stored secrets cannot be decrypted: send all checks again' },
    },
    delete: {
      description: 'A guardrail that is in use cannot be deleted, because calls would continue without it.',
      errors: { guardrail_in_use: 'a config, workspace or key uses the guardrail' },
    },
  },
  path: '/v1/guardrails',
  names: { one: 'guardrail', many: 'guardrails', tag: 'Guardrails', about: 'Checks of requests and answers.' },
  shared: {},
  fields: guardrailFields,
  applied: { refersTo: {}, secrets: new RegExp(`^checks/\\d+/parameters/${webhookMember}$`) },
  slugs: {},
  creation: { limit: recordsLimit },
  versions: {
    fields: ['checks', 'actions'],
    publish: 'at_once',
    shown: ({ checks = [], actions = {} }) => ({ checks: shownChecks(checks), actions: shownActions(actions) }),
  },

  async check({ name, checks, actions }, context) {
    const { row } = context;
    const before = await wholeOf(context);
    if (before === null && row !== null && checks === undefined) throw unreadableChecks(row);
    const whole: GuardrailDocument = {
      checks: readChecks(checks ?? before?.checks ?? [], context.checkDestination),
      actions: actions ?? before?.actions ?? {},
    };
    const named = name === undefined ? {} : { name };
    if (isDeepStrictEqual(whole, before)) return { data: named };
    const { document, secrets } = splitSecrets(asConfig(whole.checks));
    return { data: { ...named, checks: checksOf(document), actions: whole.actions }, secrets };
  },

  removal: {
    check: ({ id, slug, workspace_id }, _caller, unit) => refuseWhenNamed(unit, workspace_id, [id, slug ?? id]),
  },

  view(row) {
    const { id, workspace_id, data, deleted_at } = row;
    return {
      name: data.name,
      organisation_id: organisationId,
      workspace_id: workspace_id === organisationId ? null : workspace_id,
      status: deleted_at ? 'archived' : 'active',
      version: data.guardrail_version,
      version_id: versionId(id, data.guardrail_version),
      checks: shownChecks(data.checks),
      actions: shownActions(data.actions),
      ...authorsOf(row),
    };
  },
  viewSchema: GuardrailObject,

  cached: {
    toEntry({ id, slug: stored, data: { name, checks, actions, guardrail_version: version } }, secrets, { logger }) {
      const slug = stored ?? id;
      const whole = secrets && joinSecrets(asConfig(checks), secrets);
      const guardrail = whole && toStoredGuardrail({ id, slug, version, name }, { checks: checksOf(whole), actions });
      if (guardrail === null) logger.error({ guardrail_id: id }, 'a stored guardrail cannot be read');
      return { slug, guardrail };
    },
  },
});

/** Fills in defaults for omitted members: a guardrail without `deny` records its findings and refuses no calls. */
const shownActions = (actions: GuardrailDocument['actions']): object => ({
  deny: false,
  async: false,
  on_success: {},
  on_fail: {},
  ...actions,
});

/**
 * Throws invalid_request for a name that does not match any guardrail of the workspace. `param` is the position of the
 * document.
 */
export async function requireGuardrails(
  { tx }: Pick<UnitOfWork, 'tx'>,
  workspaceId: string,
  document: unknown,
  param: string,
): Promise<void> {
  const names = [...guardrailNamesIn(document)];
  if (names.length === 0) return;
  const id = idOfName('guardrail', sql`wanted.name`, ofWorkspaceOrShared(workspaceId));
  const { rows } = await sql<{ name: string }>`
    select wanted.name from unnest(${names}::text[]) with ordinality as wanted (name, place)
    where ${id} is null order by place limit 1`.execute(tx);
  if (rows[0]) throw noSuchGuardrail(rows[0].name, param);
}

/**
 * Refuses to delete a guardrail that an active record names. References that are not in a record (configs that come with
 * calls, versions that batches use) no longer resolve after a deletion, and are then refused.
 */
async function refuseWhenNamed({ tx }: UnitOfWork, workspaceId: string, names: readonly string[]): Promise<void> {
  const owner = workspaceId === organisationId ? null : workspaceId;
  // Few documents contain the text; only parsing them shows whether it is a guardrail name there.
  const { rows } = await sql<{ kind: string; name: string; data: object }>`
    select kind, coalesce(slug, id) as name, data from resource
    where workspace_id = coalesce(${owner}, workspace_id) and deleted_at is null and kind <> 'guardrail'
      and exists (select from unnest(${names}::text[]) as name where position(to_json(name)::text in data::text) > 0)
    order by id limit 1000`.execute(tx);
  const holder = rows.find(({ data }) => names.some((name) => guardrailNamesIn(data).has(name)));
  if (holder === undefined) return;
  const message = `The ${holder.kind.replaceAll('_', ' ')} '${holder.name}' uses this guardrail, and its calls would be rejected without it. Remove the guardrail there first.`;
  throw new GatewayError('conflict', 'guardrail_in_use', message, { param: 'slug' });
}

type Checks = GuardrailDocument['checks'];

// Secrets are located and guardrails validated in the same way as in configs.
const asConfig = (checks: Checks) => ({ input_guardrails: [{ checks }] });
const checksOf = (config: Record<string, unknown>): Checks =>
  (config as ReturnType<typeof asConfig>).input_guardrails[0]?.checks ?? [];
const shownChecks = (checks: Checks): Checks => checksOf(redactSecrets(asConfig(checks)));

/**
 * Returns the checks in the form that the event log returns them. Throws invalid_request for checks that can never be
 * evaluated, including disabled ones.
 */
function readChecks(checks: Checks, checkDestination: (url: URL) => void): Checks {
  const enabled = checks.map((check) => ({ ...check, is_enabled: true }));
  try {
    readDocument(asConfig(enabled), 'checks', checkDestination);
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    const param = error.param?.replace(/^checks\.input_guardrails(?:\[0\]\.checks)?/, 'checks') ?? 'checks';
    throw new GatewayError(error.kind, error.code, error.message, { param, cause: error });
  }
  return JSON.parse(JSON.stringify(checks)) as Checks;
}

/** null for a new guardrail, and if the secrets cannot be read. */
async function wholeOf({ row, readSecrets }: CheckContext<GuardrailData>): Promise<GuardrailDocument | null> {
  if (row === null) return null;
  const { checks, actions } = row.data;
  const secrets = await readSecrets();
  const whole = secrets && joinSecrets(asConfig(checks), secrets);
  return whole && { checks: checksOf(whole), actions };
}

const unreadableChecks = ({ slug, id }: ResourceRow<GuardrailData>): GatewayError => {
  const message = `The secrets of the guardrail '${slug ?? id}' cannot be decrypted. Send its checks again, with their secrets.`;
  return new GatewayError('conflict', 'guardrail_unreadable', message, { param: 'checks' });
};
