import { isDeepStrictEqual } from 'node:util';
import type { UpdateVirtualKeyRequest } from '#libs/contracts/virtual-keys.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { SecretUnreadableError, type SecretMembers, type Secrets } from './secrets.ts';
import { changedDestination, checkHost, lastFourOf, splitSettings } from './virtual-key-input.ts';
import { virtualKeyModel, type VirtualKeyFields, type VirtualKeyRow } from './virtual-key-model.ts';

type Deps = { secrets: Secrets; checkDestination: (url: URL) => void };
type Changes = Partial<VirtualKeyFields>;

/**
 * Applies a PUT to a virtual key inside a transaction: appends `virtual_key.updated` with what differs, or nothing.
 * A stored credential is only sent to the server that it was stored for: a change of server needs the credential in the same
 * request, and none of the old secrets are kept. Throws invalid_request.
 */
export async function changeVirtualKey(
  deps: Deps,
  unit: UnitOfWork,
  row: VirtualKeyRow,
  request: UpdateVirtualKeyRequest,
): Promise<VirtualKeyRow> {
  const { provider } = row;
  const { settings: givenSettings, secrets: given } = splitSettings(provider, request);
  const settings = { ...row.settings, ...givenSettings };
  const wanted = request.custom_host === undefined ? row.custom_host : request.custom_host;
  // A stored host is not checked again, so that a name can be changed whatever the operator allows by now.
  const isNewPlace = request.custom_host !== undefined || (wanted === null && Object.keys(givenSettings).length > 0);
  const customHost = isNewPlace ? checkHost(deps.checkDestination, { provider, settings, customHost: wanted }) : wanted;
  const moved =
    customHost === row.custom_host ? changedDestination(provider, row.settings, givenSettings) : 'custom_host';
  const hasNewSecret = Object.keys(given).length > 0;
  if (moved !== null && row.secret_id !== null && !hasNewSecret) throw needsCredential(row.slug, moved);

  const changes: Changes = {};
  if (request.name !== undefined && request.name !== row.name) changes.name = request.name;
  if (request.note !== undefined && request.note !== row.note) changes.note = request.note;
  if (customHost !== row.custom_host) changes.custom_host = customHost;
  if (!isDeepStrictEqual(settings, row.settings)) changes.settings = settings;
  const expiresAt = request.expires_at === undefined ? row.expires_at : request.expires_at;
  if (expiresAt?.getTime() !== row.expires_at?.getTime()) changes.expires_at = expiresAt?.toISOString() ?? null;
  if (hasNewSecret) Object.assign(changes, await replaceSecret(deps, unit, row, given, moved !== null));

  return unit.append(
    virtualKeyModel,
    row.id,
    Object.keys(changes).length === 0 ? [] : [{ type: 'virtual_key.updated', data: changes }],
  );
}

/** Adds a new row: an old ciphertext is never overwritten, so that a transaction that fails keeps it. */
async function replaceSecret(
  { secrets }: Deps,
  unit: UnitOfWork,
  row: VirtualKeyRow,
  given: SecretMembers,
  startsAnew: boolean,
): Promise<Pick<VirtualKeyFields, 'secret_id' | 'secret_last_four'>> {
  const kept =
    startsAnew || row.secret_id === null ? {} : await readKept(secrets, unit, row.workspace_id, row.secret_id);
  const members = { ...kept, ...given };
  if (row.secret_id !== null) await secrets.remove(unit, row.secret_id);
  const secretId = await secrets.store(unit, { workspaceId: row.workspace_id, ownerId: row.id }, members);
  return { secret_id: secretId, secret_last_four: lastFourOf(members) };
}

/** None for a credential that cannot be read any more, since an operator repairs one by storing it again. */
async function readKept(secrets: Secrets, unit: UnitOfWork, workspaceId: string, id: string): Promise<SecretMembers> {
  try {
    return (await secrets.read(unit.tx, workspaceId, id)) ?? {};
  } catch (error) {
    if (error instanceof SecretUnreadableError) return {};
    throw error;
  }
}

const needsCredential = (slug: string, param: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'credential_required',
    `Changing '${param}' would send the stored credential of '${slug}' to another server. Send the 'key' (or the ` +
      "provider's own secret settings) in the same request.",
    { param: 'key' },
  );
