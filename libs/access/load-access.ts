import { sql, type Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { Secret } from '#libs/kernel/secret.ts';
import { findProvider } from '#libs/providers/registry.ts';
import type { AnyResource } from '#libs/resources/define-resource.ts';
import { apiKeyKind, type LiveApiKey } from '#libs/resources/api-keys.ts';
import { configKind, type LiveConfig } from '#libs/resources/configs.ts';
import { liveKind, loadLiveKinds, type LiveKind, type LiveKinds } from '#libs/resources/live-resources.ts';
import type { AddedGuardrails } from '#libs/calls/plan/add-guardrails.ts';
import { workspaceKind, type LiveWorkspace } from '#libs/resources/workspaces.ts';
import type { SecretMembers, Secrets } from './secrets.ts';

export type LiveVirtualKey = {
  readonly id: string;
  readonly version: number;
  readonly workspaceId: string;
  readonly slug: string;
  readonly provider: string;
  /** Canonical; null for the provider's own address. */
  readonly customHost: string | null;
  /** Where calls go; null when this process does not know the provider (a newer release stored it). */
  readonly baseUrl: URL | null;
  readonly settings: Readonly<Record<string, string>>;
  readonly apiKey: Secret | null;
  /** Decrypted; null when the stored row does not open. */
  readonly secrets: SecretMembers | null;
  readonly expiresAtMs: number;
};

/** Everything that authenticates and routes a request, as of one version of the access tables. Never changed. */
export type AccessState = {
  readonly version: number;
  readonly virtualKeys: ReadonlyMap<string, LiveVirtualKey>;
  /** By workspace, then slug. */
  readonly virtualKeysBySlug: ReadonlyMap<string, ReadonlyMap<string, LiveVirtualKey>>;
  /** By workspace; only those that have some. */
  readonly guardrails: ReadonlyMap<string, AddedGuardrails | null>;
  /** Of every kind of record that is cached, by its noun. */
  readonly kinds: LiveKinds;
  /** Two of them, found once for all calls. */
  readonly apiKeys: LiveKind<LiveApiKey>;
  readonly configs: LiveKind<LiveConfig>;
};

export const emptyAccess: AccessState = {
  version: -1,
  virtualKeys: new Map(),
  virtualKeysBySlug: new Map(),
  guardrails: new Map(),
  kinds: new Map(),
  apiKeys: liveKind(new Map(), apiKeyKind),
  configs: liveKind(new Map(), configKind),
};

type Deps = { db: Kysely<Database>; secrets: Pick<Secrets, 'open'>; logger: Logger; kinds: readonly AnyResource[] };

// Rows a query: decrypting them (about 20 µs each) then never holds the event loop for long.
const sliceRows = 500;

/**
 * The state of the database, which is at least as new as `version` (read before). Only what differs from `previous` by
 * stream version is fetched and decrypted, so that one change among 10,000 keys costs a list of ids, not 10,000 rows.
 */
export async function loadAccess(deps: Deps, version: number, previous: AccessState): Promise<AccessState> {
  // Expired ones stay: their users are told so.
  const virtualKeyVersions = await deps.db
    .selectFrom('virtual_key')
    .select(['id', 'version'])
    .where('deleted_at', 'is', null)
    .execute();
  const virtualKeys = await renew(previous.virtualKeys, virtualKeyVersions, (ids) => fetchVirtualKeys(deps, ids));
  const kinds = await loadLiveKinds(deps, deps.kinds, previous.kinds);
  return {
    version,
    virtualKeys,
    virtualKeysBySlug: bySlug(virtualKeys.values()),
    guardrails: guardrailsOf(liveKind(kinds, workspaceKind)),
    kinds,
    apiKeys: liveKind(kinds, apiKeyKind),
    configs: liveKind(kinds, configKind),
  };
}

function guardrailsOf({ byId }: LiveKind<LiveWorkspace>): Map<string, AddedGuardrails | null> {
  const found = new Map<string, AddedGuardrails | null>();
  for (const [id, { guardrails }] of byId) if (guardrails !== undefined) found.set(id, guardrails);
  return found;
}

function bySlug<Entry extends { workspaceId: string; slug: string }>(
  entries: Iterable<Entry>,
): Map<string, Map<string, Entry>> {
  const grouped = Map.groupBy(entries, ({ workspaceId }) => workspaceId);
  return new Map(
    [...grouped].map(([workspaceId, ofWorkspace]) => [
      workspaceId,
      new Map(ofWorkspace.map((entry) => [entry.slug, entry])),
    ]),
  );
}

/** The listed entries: those of an unchanged version as they are, the others fetched in slices. */
async function renew<Entry extends { id: string; version: number }>(
  previous: ReadonlyMap<string, Entry>,
  listed: readonly { id: string; version: number }[],
  fetch: (ids: readonly string[]) => Promise<Entry[]>,
): Promise<Map<string, Entry>> {
  const entries = new Map<string, Entry>();
  const stale: string[] = [];
  for (const { id, version } of listed) {
    const entry = previous.get(id);
    if (entry?.version === version) entries.set(id, entry);
    else stale.push(id);
  }
  for (let from = 0; from < stale.length; from += sliceRows) {
    for (const entry of await fetch(stale.slice(from, from + sliceRows))) entries.set(entry.id, entry);
  }
  return entries;
}

async function fetchVirtualKeys({ db, secrets, logger }: Deps, ids: readonly string[]): Promise<LiveVirtualKey[]> {
  const rows = await db
    .selectFrom('virtual_key')
    .leftJoin('secret', (join) =>
      join
        .onRef('secret.id', '=', 'virtual_key.secret_id')
        .onRef('secret.owner_id', '=', 'virtual_key.id')
        .onRef('secret.workspace_id', '=', 'virtual_key.workspace_id'),
    )
    .selectAll('virtual_key')
    .select(['secret.master_key_id', 'secret.wrapped_key', 'secret.ciphertext'])
    .where('virtual_key.id', '=', sql<string>`any(${ids}::text[])`)
    .where('virtual_key.deleted_at', 'is', null)
    .execute();
  return rows.map((row) => {
    const members = openMembers(row, secrets, logger);
    return {
      id: row.id,
      version: row.version,
      workspaceId: row.workspace_id,
      slug: row.slug,
      provider: row.provider,
      customHost: row.custom_host,
      baseUrl: row.custom_host === null ? addressOf(row) : new URL(row.custom_host),
      settings: row.settings,
      apiKey: members?.['key'] ?? null,
      secrets: members,
      expiresAtMs: row.expires_at?.getTime() ?? Number.POSITIVE_INFINITY,
    };
  });
}

/** null for a provider that this process does not know, or settings that it cannot make an address of. */
function addressOf({ provider, settings }: { provider: string; settings: Record<string, string> }): URL | null {
  try {
    return findProvider(provider)?.baseUrlOf(settings) ?? null;
  } catch {
    return null;
  }
}

type SecretColumns = {
  id: string;
  workspace_id: string;
  slug: string;
  secret_id: string | null;
  master_key_id: string | null;
  wrapped_key: Buffer | null;
  ciphertext: Buffer | null;
};

/** One row that does not open must not keep all other keys from being served. */
function openMembers(row: SecretColumns, secrets: Pick<Secrets, 'open'>, logger: Logger): SecretMembers | null {
  const { id, workspace_id, secret_id, master_key_id, wrapped_key, ciphertext } = row;
  if (secret_id === null) return {};
  try {
    if (master_key_id === null || wrapped_key === null || ciphertext === null) throw new Error('its row is missing');
    return secrets.open({ id: secret_id, workspace_id, owner_id: id, master_key_id, wrapped_key, ciphertext });
  } catch (error) {
    logger.error({ err: error, virtual_key_id: id }, 'the credential of a virtual key cannot be read');
    return null;
  }
}
