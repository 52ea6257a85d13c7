import { isDeepStrictEqual } from 'node:util';
import type { UpdateVirtualKeyRequest } from '#libs/contracts/virtual-keys.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { canonicalHost, parseCustomHost } from './custom-host.ts';
import { SecretUnreadableError, type SecretMembers, type Secrets } from './secrets.ts';
import { changedDestination, lastFourOf, splitSettings } from './virtual-key-input.ts';
import { virtualKeyModel, type VirtualKeyFields, type VirtualKeyRow } from './virtual-key-model.ts';
import { missingHost } from './missing-host.ts';

type Deps = { secrets: Secrets; checkDestination: (url: URL) => void };
type Changes = Partial<VirtualKeyFields>;

/**
 * Applies a PUT to a living virtual key inside a transaction: appends `virtual_key.updated` with what differs, or nothing.
 * A stored credential is for the place that it was stored for: a change of place needs the credential in the same request,
 * and takes over nothing of the old one. Throws invalid_request.
 */
export async function changeVirtualKey(
  deps: Deps,
  unit: UnitOfWork,
  row: VirtualKeyRow,
  request: UpdateVirtualKeyRequest,
): Promise<VirtualKeyRow> {
  const { settings: givenSettings, secrets: given } = splitSettings(row.provider, request);
  const customHost = wantedHost(deps, row, request.custom_host);
  const settings = { ...row.settings, ...givenSettings };
  const moved =
    customHost === row.custom_host ? changedDestination(row.provider, row.settings, givenSettings) : 'custom_host';
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

function wantedHost({ checkDestination }: Deps, row: VirtualKeyRow, wanted: string | null | undefined): string | null {
  if (wanted === undefined) return row.custom_host;
  if (wanted === null) {
    if (findProvider(row.provider)?.baseUrlOf(row.settings)) return null;
    throw missingHost(row.provider, row.settings);
  }
  const url = parseCustomHost(wanted, 'custom_host');
  checkDestination(url);
  return canonicalHost(url);
}

/** A new row for the new document: an old ciphertext is never overwritten, and a transaction that fails keeps it. */
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

/** To store it again is how an operator mends a credential that cannot be read any more. */
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
    `A change of '${param}' would send the stored credential of '${slug}' to another server: give the 'key' (or the ` +
      "provider's own secret settings) for it in the same request.",
    { param: 'key' },
  );
