import { sql } from 'kysely';
import { z } from 'zod';
import { tryParse } from '#libs/contracts/parse.ts';
import {
  authForms,
  managerTypes,
  secretReferenceFields,
  secretReferenceLimits,
  SecretReferenceObject,
  tagsFilter,
  type ManagerType,
} from '#libs/contracts/secret-references.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import type { LiveSecretReference } from '#libs/secret-managers/secret-manager.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import { findWorkspace, noSuchWorkspace } from '#libs/records/choose-workspace.ts';
import { defineKind, type CheckContext } from '#libs/resources/define-kind.ts';
import type { Checked } from '#libs/records/kit.ts';
import { asJson } from '#libs/records/resource-row.ts';
import { refuseMappedReference } from './secret-mappings.ts';
import { isReferenceFor, type SecretReferenceData } from './secret-reference-data.ts';

type Input = Partial<z.output<z.ZodObject<typeof secretReferenceFields>>>;
type Context = CheckContext<SecretReferenceData>;

const secretNames = Object.values(authForms).flatMap((known) =>
  Object.values(known?.forms ?? {}).flatMap(({ secrets }) => secrets),
);
const secretMembers = new RegExp(`^auth_config/(?:${secretNames.join('|')})$`);
/** Shown in answers instead of the secrets of `auth_config`. */
const mask = '********';

/**
 * Points to a secret outside of Sluice: in a secret manager, or in a variable or file of the server. Credentials map fields
 * to it (libs/resources/secret-references/secret-mappings.ts). The secret itself is fetched for calls and never stored.
 */
export const secretReferenceKind = defineKind<typeof secretReferenceFields, SecretReferenceData, LiveSecretReference>({
  noun: 'secret_reference',
  idPrefix: 'sref_',
  area: 'secret_references',
  texts: {
    create: {
      description:
        'Names a credential in HashiCorp Vault, AWS Secrets Manager, Azure Key Vault, an environment variable or a ' +
        'file. It is read when a call needs it and refreshed every few minutes, so you can rotate it without a ' +
        'restart.',
      example: {
        name: 'Main',
        manager_type: 'hashicorp_vault',
        auth_config: { vault_auth_type: 'token', vault_addr: 'https://vault.example.com', vault_token: 'hvs.…' },
        secret_path: 'secret/data/llm',
        secret_key: 'api_key',
      },
      errors: { limit_exceeded: 'the limit of secret references is reached' },
    },
    update: {
      description:
        'Takes effect the next time the credential is read. Secrets in `auth_config` that you leave out are kept ' +
        'unless the address changes.',
      example: { secret_path: 'secret/data/llm-2026' },
    },
    delete: {
      description: 'A reference that is in use cannot be deleted.',
      errors: { secret_reference_in_use: 'a virtual key or an integration reads a credential from the reference' },
    },
  },
  path: '/v1/secret-references',
  names: {
    one: 'secret reference',
    many: 'secret references',
    tag: 'Secret references',
    about: 'Credentials that are stored outside Sluice.',
  },
  shared: { isDefault: true, with: isReferenceFor },
  fields: secretReferenceFields,
  applied: { refersTo: {}, secrets: secretMembers, areCredentials: true },
  changes: { immutable: ['manager_type'] },
  slugs: { areGlobal: true },
  // Locked while the number of references is checked.
  locks: (workspaceId) => [`secret_references:${workspaceId}`],
  filters: {
    manager_type: { schema: z.enum(managerTypes), field: 'manager_type', match: 'equal' },
    search: {
      schema: z.string().min(1).max(255),
      where: (wanted: string) => sql`position(lower(${wanted}) in lower(concat_ws(' ', data ->> 'name', slug))) > 0`,
    },
    tags: {
      schema: tagsFilter(),
      where: (tags: Record<string, string>) => sql`data -> 'tags' @> ${JSON.stringify(tags)}::jsonb`,
    },
  },

  async check(input, context) {
    if (context.row === null) await refuseTooMany(context);
    const { data, secrets } = await checkAuth(input, context);
    const whole = { ...context.row?.data, ...data };
    refuseServerSecrets(whole, context);
    context.secretManagers?.check({
      managerType: whole.manager_type ?? 'environment',
      auth: whole.auth_config ?? {},
      path: whole.secret_path ?? '',
    });
    return {
      data: {
        ...data,
        ...(await checkWorkspaces(input, context)),
        ...checkHosts(input, context),
        ...checkKeys(input, context),
      },
      ...(secrets && { secrets }),
    };
  },

  removal: { check: ({ id }, _caller, unit) => refuseMappedReference(unit, id) },

  view(row) {
    const { workspace_id, data, deleted_at } = row;
    return {
      organisation_id: organisationId,
      workspace_id: workspace_id === organisationId ? null : workspace_id,
      name: data.name,
      description: data.description,
      manager_type: data.manager_type,
      auth_config: { ...data.auth_config, ...Object.fromEntries(secretNamesOf(data).map((name) => [name, mask])) },
      secret_path: data.secret_path,
      secret_key: data.secret_key,
      allowed_secret_keys: data.allowed_secret_keys ?? [],
      allow_all_workspaces: data.allow_all_workspaces,
      allowed_workspaces: data.allowed_workspaces,
      allowed_hosts: data.allowed_hosts ?? [],
      tags: data.tags,
      status: deleted_at ? 'DELETED' : 'ACTIVE',
      created_by: data.created_by ?? null,
    };
  },
  viewSchema: SecretReferenceObject,

  cached: {
    toEntry: ({ id, slug, workspace_id: ownerId, data }, secrets) => ({
      id,
      slug: slug ?? id,
      ownerId,
      managerType: data.manager_type,
      auth: data.auth_config,
      secrets,
      path: data.secret_path,
      key: data.secret_key,
      allowedKeys: data.allowed_secret_keys ?? [],
      workspaces: data.allow_all_workspaces ? null : new Set(data.allowed_workspaces),
    }),
  },
});

async function refuseTooMany({ unit, workspaceId }: Context): Promise<void> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from resource
    where kind = 'secret_reference' and workspace_id = ${workspaceId} and deleted_at is null`.execute(unit.tx);
  const { ofOwnerMax } = secretReferenceLimits;
  if ((rows[0]?.count ?? 0) < ofOwnerMax) return;
  const message = `There are already ${ofOwnerMax} secret references, the maximum. Delete one first.`;
  throw new GatewayError('quota_exceeded', 'limit_exceeded', message);
}

/**
 * Variables, files and the service account belong to the server, so workspaces cannot choose which of their secrets to use.
 */
function refuseServerSecrets(
  { manager_type: managerType, auth_config: auth }: Partial<SecretReferenceData>,
  { workspaceId }: Context,
): void {
  const isKubernetes = auth?.['vault_auth_type'] === 'kubernetes';
  if (workspaceId === organisationId || !(managerType === 'environment' || managerType === 'file' || isKubernetes))
    return;
  const what = isKubernetes ? "that sign in with 'kubernetes'" : `of the type '${managerType}'`;
  const message = `Only the organisation can have secret references ${what}. Create it with an organisation key, without workspace_id, and share it with this workspace.`;
  const param = isKubernetes ? 'auth_config.vault_auth_type' : 'manager_type';
  throw new GatewayError('forbidden', 'organisation_key_required', message, { param });
}

/** Checks everything except the workspaces. The secrets are absent if they do not change. */
async function checkAuth(input: Input, context: Context): Promise<Checked<SecretReferenceData>> {
  const {
    auth_config: given,
    allow_all_workspaces: _all,
    allowed_workspaces: _some,
    allowed_hosts: _hosts,
    allowed_secret_keys: _keys,
    ...fields
  } = input;
  const { row } = context;
  const nothing = row === null ? { description: null, secret_key: null, tags: null } : {};
  const data = { ...nothing, ...(asJson(fields) as Partial<SecretReferenceData>) };
  if (row !== null && given === undefined) return { data };
  const managerType = row?.data.manager_type ?? input.manager_type ?? 'environment';
  const { auth, secrets } = await checkAuthConfig(managerType, given ?? {}, context);
  return { data: { ...data, auth_config: auth }, secrets };
}

/**
 * Splits an `auth_config` into members that can be shown and members that are encrypted. A secret that a change omits is
 * kept, unless the change would send it to another server. Throws invalid_request.
 */
async function checkAuthConfig(
  managerType: ManagerType,
  given: Record<string, unknown>,
  { row, readSecrets }: Context,
): Promise<{ auth: Record<string, string>; secrets: SecretMembers }> {
  const known = authForms[managerType];
  if (known === null) {
    const [name] = Object.keys(given);
    if (name === undefined) return { auth: {}, secrets: {} };
    throw invalid(`auth_config.${name}`, `secrets of the type '${managerType}' need no credentials. Leave it out`);
  }
  const type = given[known.member];
  const types = Object.keys(known.forms);
  const form = typeof type === 'string' && Object.hasOwn(known.forms, type) ? known.forms[type] : undefined;
  if (form === undefined) {
    const expected = types.map((name) => `'${name}'`).join(', ');
    throw invalid(`auth_config.${known.member}`, `this server supports ${expected} for '${managerType}'`);
  }
  const masked = form.secrets.find((name) => given[name] === mask);
  if (masked !== undefined) {
    throw invalid(
      `auth_config.${masked}`,
      'this is the placeholder of the stored secret. Leave it out to keep the secret',
    );
  }
  const kept = row === null || movesAway(row.data, given) ? {} : ((await readSecrets()) ?? {});
  const completed = { ...Object.fromEntries(form.secrets.map((name) => [name, kept[name]?.reveal()])), ...given };
  const result = tryParse(form.schema, completed, 'auth_config');
  if (!result.ok) {
    const { code, message, param } = result.problem;
    throw new GatewayError('invalid_request', code, message, { param });
  }
  const members = Object.entries(result.value as Record<string, string>);
  const isSecret = ([name]: [string, string]): boolean => form.secrets.includes(name);
  return {
    auth: Object.fromEntries(members.filter((member) => !isSecret(member))),
    secrets: Object.fromEntries(members.filter(isSecret).map(([name, value]) => [name, new Secret(value)])),
  };
}

/** A stored credential is only sent to the server for which it was stored. */
const movesAway = ({ auth_config: stored }: SecretReferenceData, given: Record<string, unknown>): boolean =>
  ['vault_addr', 'azure_vault_url'].some((name) => stored[name] !== given[name]);

/** Throws invalid_request, and not_found for a workspace that does not exist. */
async function checkWorkspaces(
  { allow_all_workspaces: all, allowed_workspaces: names }: Input,
  { row, unit, workspaceId }: Context,
): Promise<Partial<SecretReferenceData>> {
  if (workspaceId !== organisationId) {
    if (names === undefined || names.length === 0) return row === null ? ofOneWorkspace : {};
    throw invalid(
      'allowed_workspaces',
      'this reference belongs to one workspace. Only references of the organisation can have it',
    );
  }
  if (all === true && names !== undefined && names.length > 0) {
    throw invalid('allowed_workspaces', 'it cannot be combined with allow_all_workspaces. Send only one of them');
  }
  if (names === undefined) {
    if (all === undefined) return row === null ? { allow_all_workspaces: true, allowed_workspaces: [] } : {};
    return { allow_all_workspaces: all, allowed_workspaces: all ? [] : (row?.data.allowed_workspaces ?? []) };
  }
  const ids = new Set<string>();
  for (const [index, name] of names.entries()) {
    const id = await findWorkspace(unit.tx, name);
    if (id === null) throw noSuchWorkspace(name, `allowed_workspaces[${index}]`);
    ids.add(id);
  }
  return { allow_all_workspaces: false, allowed_workspaces: [...ids] };
}

/** Throws invalid_request for a host that is not an origin, and for the reference of one workspace. */
function checkHosts(
  { allowed_hosts: hosts }: Input,
  { workspaceId }: Context,
): Pick<SecretReferenceData, 'allowed_hosts'> {
  if (hosts === undefined) return {};
  if (workspaceId !== organisationId && hosts.length > 0) {
    throw invalid(
      'allowed_hosts',
      'this reference belongs to one workspace, which can send its secret to any host. Leave it out',
    );
  }
  const origins = hosts.map((host, index) => {
    const url = URL.parse(host);
    const isOrigin = url !== null && /^https?:$/.test(url.protocol) && [url.origin, url.href].includes(host);
    if (isOrigin && url.href === `${url.origin}/`) return url.origin;
    throw invalid(`allowed_hosts[${index}]`, 'expected an origin like https://llm.example.com:8443, without a path');
  });
  return { allowed_hosts: [...new Set(origins)] };
}

/** Throws invalid_request for the reference of one workspace. */
function checkKeys(
  { allowed_secret_keys: keys }: Input,
  { workspaceId }: Context,
): Pick<SecretReferenceData, 'allowed_secret_keys'> {
  if (keys === undefined) return {};
  if (workspaceId !== organisationId && keys.length > 0) {
    throw invalid(
      'allowed_secret_keys',
      'this reference belongs to one workspace, which can map any member. Leave it out',
    );
  }
  return { allowed_secret_keys: [...new Set(keys)] };
}

const ofOneWorkspace = { allow_all_workspaces: false, allowed_workspaces: [] };

function secretNamesOf({ manager_type: managerType, auth_config: auth }: SecretReferenceData): readonly string[] {
  const known = authForms[managerType];
  return known?.forms[auth[known.member] ?? '']?.secrets ?? [];
}

const invalid = (param: string, why: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${why}.`, { param });
