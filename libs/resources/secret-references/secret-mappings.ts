import { sql } from 'kysely';
import type { z } from 'zod';
import type { secretMappings, SecretMapping } from '#libs/contracts/secret-references.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { LiveSecretReference } from '#libs/secret-managers/secret-manager.ts';
import { idOfName } from '#libs/records/find-by-name.ts';
import { refuseUnmappable } from '#libs/credentials/provider-settings.ts';
import { canUseMember, memberNotAllowed } from '#libs/credentials/mapped-secrets.ts';
import { isReferenceFor } from './secret-reference-data.ts';

type FoundReference = Pick<LiveSecretReference, 'id' | 'slug' | 'ownerId' | 'key' | 'allowedKeys'>;
type Given = z.output<ReturnType<typeof secretMappings>>;

/**
 * The mappings of a request in their stored form; undefined if the request has none. `ownerId`: the workspace that owns the
 * credential, or the organisation. The references cannot be deleted until the transaction ends. Throws invalid_request for a
 * field that cannot be mapped or is mapped twice, and for a reference that the owner cannot map; forbidden for a member of
 * the secret that the organisation does not share.
 */
export async function checkMappings(
  { tx }: Pick<UnitOfWork, 'tx'>,
  { ownerId, provider }: { ownerId: string; provider: string },
  given: Given | undefined,
): Promise<SecretMapping[] | undefined> {
  if (given === undefined) return undefined;
  const mappings: SecretMapping[] = [];
  for (const [index, { target_field, secret_reference_id, secret_key, value_format }] of (given ?? []).entries()) {
    const place = `secret_mappings[${index}]`;
    // Portkey's field names include their position in the body.
    const field = target_field.replace(/^(?:configurations|model_config)\./, '');
    refuseUnmappable(provider, field, `${place}.target_field`);
    if (mappings.some((other) => other.target_field === field)) {
      const message = `Invalid '${place}.target_field': '${field}' is mapped twice. Map each field once.`;
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: `${place}.target_field` });
    }
    const reference = await findReference(tx, ownerId, secret_reference_id);
    if (reference === null) throw noSuchReference(secret_reference_id, `${place}.secret_reference_id`);
    const secretKey = secret_key ?? reference.key;
    if (!canUseMember(reference, ownerId, secretKey)) {
      throw memberNotAllowed(reference, secretKey, `${place}.secret_key`);
    }
    mappings.push({
      target_field: field,
      secret_reference_id: reference.id,
      secret_key: secret_key ?? null,
      value_format: value_format ?? null,
    });
  }
  return mappings;
}

/** The lock keeps the reference from being deleted before the mapping is committed: see `refuseMappedReference`. */
async function findReference(tx: UnitOfWork['tx'], ownerId: string, name: string): Promise<FoundReference | null> {
  const isUsable = sql`(workspace_id = ${ownerId}
    or (workspace_id = ${organisationId} and ${isReferenceFor(ownerId)}))`;
  const find = sql<FoundReference>`
    select id, coalesce(slug, id) as slug, workspace_id as "ownerId", data ->> 'secret_key' as key,
      coalesce(data -> 'allowed_secret_keys', '[]') as "allowedKeys"
    from resource
    where id = ${idOfName('secret_reference', name, isUsable)} and deleted_at is null for share`;
  // A workspace can see references of the organisation, but Postgres only lets roles lock rows that they can change.
  const { rows } = await asSystem(() => find.execute(tx));
  return rows[0] ?? null;
}

/**
 * Throws forbidden if a workspace would send a secret of the organisation to a host that its reference does not name. The
 * provider's own address (`customHost` null) does not have to be named. A workspace can send its own references anywhere.
 */
export async function refuseOtherHosts(
  { tx }: Pick<UnitOfWork, 'tx'>,
  { ownerId, customHost }: { ownerId: string; customHost: string | null },
  mappings: readonly SecretMapping[],
): Promise<void> {
  if (ownerId === organisationId || customHost === null || mappings.length === 0) return;
  const { origin } = new URL(customHost);
  const find = sql<{ name: string }>`
    select coalesce(slug, id) as name from resource
    where kind = 'secret_reference' and workspace_id = ${organisationId}
      and id = any(${mappings.map(({ secret_reference_id: id }) => id)}::text[])
      and not coalesce(data -> 'allowed_hosts', '[]') @> ${JSON.stringify([origin])}::jsonb
    order by 1 limit 1`;
  const { rows } = await asSystem(() => find.execute(tx));
  const [refused] = rows;
  if (refused === undefined) return;
  const message = `The secret reference '${refused.name}' of the organisation cannot be sent to ${origin}. Ask for this host to be added to its allowed_hosts with an organisation key, or leave out custom_host to call the provider directly.`;
  throw new GatewayError('forbidden', 'host_not_allowed', message, { param: 'custom_host' });
}

/** Throws conflict for a reference that an active credential maps a field to, and names the first one. */
export async function refuseMappedReference({ tx }: Pick<UnitOfWork, 'tx'>, id: string): Promise<void> {
  // A transaction that adds a mapping holds this lock until it commits, so the query below sees the mapping.
  await sql`select from resource where id = ${id} for update`.execute(tx);
  const wanted = JSON.stringify([{ secret_reference_id: id }]);
  const { rows } = await sql<{ kind: string; name: string; total: number }>`
    select kind, coalesce(slug, id) as name, count(*) over ()::int as total from resource
    where kind in ('virtual_key', 'integration') and deleted_at is null
      and data -> 'secret_mappings' @> ${wanted}::jsonb
    order by created_at, id limit 1`.execute(tx);
  const [holder] = rows;
  if (holder === undefined) return;
  const others = holder.total === 1 ? '' : ` and by ${holder.total - 1} more`;
  const message = `This secret reference is used by the ${holder.kind.replaceAll('_', ' ')} '${holder.name}'${others}. Calls would fail without it. Remove it from secret_mappings there first.`;
  throw new GatewayError('conflict', 'secret_reference_in_use', message, { param: 'slug' });
}

const noSuchReference = (name: string, param: string): GatewayError => {
  const message = `There is no secret reference '${name.slice(0, 100)}' that can be mapped here. GET /v1/secret-references lists those that can be mapped. An organisation key can share more.`;
  return new GatewayError('invalid_request', 'secret_reference_not_found', message, { param });
};
