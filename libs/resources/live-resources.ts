import { sql, type Kysely } from 'kysely';
import type { SealedSecret, SecretMembers, Secrets } from '#libs/secrets/secrets.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { LimitRule } from '#libs/limits/limit-rule.ts';
import type { AnyResource } from './define-resource.ts';
import type { ResourceRow } from './resource-row.ts';

/** The active records of one kind in memory, as what its `cached.toEntry` makes of them. */
export type LiveKind<Entry> = {
  readonly byId: ReadonlyMap<string, Entry>;
  /** By workspace, then slug. */
  readonly bySlug: ReadonlyMap<string, ReadonlyMap<string, Entry>>;
  readonly byLookup: ReadonlyMap<string, Entry>;
  /** To know which records have changed since. */
  readonly records: ReadonlyMap<string, LiveRecord<Entry>>;
};

type LiveRecord<Entry> = {
  readonly version: number;
  readonly workspaceId: string;
  readonly slug: string | null;
  readonly lookups: readonly (readonly [lookup: string, entry: Entry])[];
  readonly entry: Entry;
  /** The budgets and rates that the record brings. */
  readonly limits: readonly LimitRule[];
};

export type LiveKinds = ReadonlyMap<string, LiveKind<unknown>>;

const empty: LiveKind<unknown> = { byId: new Map(), bySlug: new Map(), byLookup: new Map(), records: new Map() };

type Deps = { db: Kysely<Database>; secrets: Pick<Secrets, 'open'>; logger: Logger };

const noLimits: readonly LimitRule[] = [];

// Rows a query: decrypting them (about 20 µs each) then never holds the event loop for long.
const sliceRows = 500;

/** One kind's entries; none while nothing was loaded. */
export const liveKind = <Entry>(kinds: LiveKinds, { noun }: { noun: string }): LiveKind<Entry> =>
  (kinds.get(noun) ?? empty) as LiveKind<Entry>;

/**
 * Loads the active records of the cached ones of these kinds. Only what differs from `previous` by its version is fetched
 * and decrypted: one change among 10,000 keys costs a list of ids, not 10,000 rows. A kind without a change keeps its maps.
 */
export async function loadLiveKinds(
  deps: Deps,
  kinds: readonly AnyResource[],
  previous: LiveKinds,
): Promise<Map<string, LiveKind<unknown>>> {
  const cached = kinds.filter((kind) => kind.cached);
  if (cached.length === 0) return new Map();
  const leavingOut = cached.filter((kind) => kind.cached?.leavesOutExpired).map((kind) => kind.noun);
  const { rows: listed } = await sql<{ id: string; kind: string; version: number }>`
    select id, kind, version from resource
    where kind = any(${cached.map((kind) => kind.noun)}::text[]) and deleted_at is null
      and workspace_id <> all (array(select id from resource where kind = 'workspace' and deleted_at is not null))
      and (kind <> all(${leavingOut}::text[]) or data ->> 'expires_at' is null
        or (data ->> 'expires_at')::timestamptz > clock_timestamp())`.execute(deps.db);
  const byKind = Map.groupBy(listed, ({ kind }) => kind);
  const loaded = new Map<string, LiveKind<unknown>>();
  for (const kind of cached) {
    loaded.set(kind.noun, await renew(deps, kind, liveKind(previous, kind), byKind.get(kind.noun) ?? []));
  }
  return loaded;
}

async function renew(
  deps: Deps,
  kind: AnyResource,
  previous: LiveKind<unknown>,
  listed: readonly { id: string; version: number }[],
): Promise<LiveKind<unknown>> {
  const records = new Map<string, LiveRecord<unknown>>();
  const stale: string[] = [];
  for (const { id, version } of listed) {
    const record = previous.records.get(id);
    if (record?.version === version) records.set(id, record);
    else stale.push(id);
  }
  if (stale.length === 0 && records.size === previous.records.size) return previous;
  for (let from = 0; from < stale.length; from += sliceRows) {
    for (const row of await fetchRows(deps, stale.slice(from, from + sliceRows))) {
      const { version, workspace_id: workspaceId, slug, lookup } = row;
      const entry = kind.cached?.toEntry(row, openSecrets(row, deps), deps.logger);
      const own = lookup === null ? [] : [[lookup, entry] as const];
      const lookups = [...own, ...(kind.cached?.moreLookups?.(row, entry) ?? [])];
      records.set(row.id, { version, workspaceId, slug, lookups, entry, limits: kind.limits?.(row) ?? noLimits });
    }
  }
  const bySlug = new Map<string, Map<string, unknown>>();
  const byLookup = new Map<string, unknown>();
  for (const { workspaceId, slug, lookups, entry } of records.values()) {
    for (const [lookup, found] of lookups) byLookup.set(lookup, found);
    if (slug === null) continue;
    const slugs = bySlug.get(workspaceId);
    if (slugs) slugs.set(slug, entry);
    else bySlug.set(workspaceId, new Map([[slug, entry]]));
  }
  return { byId: new Map([...records].map(([id, { entry }]) => [id, entry])), bySlug, byLookup, records };
}

type Nullable<Type> = { [Name in keyof Type]: Type[Name] | null };
type FetchedRow = ResourceRow & Nullable<Omit<SealedSecret, 'id' | 'workspace_id'>> & { sealed_id: string | null };

async function fetchRows({ db }: Deps, ids: readonly string[]): Promise<FetchedRow[]> {
  const { rows } = await sql<FetchedRow>`
    select resource.*, secret.id as sealed_id, owner_id, master_key_id, wrapped_key, ciphertext
    from resource left join secret on secret.workspace_id = resource.workspace_id
      and secret.owner_id = resource.id || coalesce('@' || resource.last_version, '')
    where resource.id = any(${ids}::text[]) and deleted_at is null`.execute(db);
  return rows;
}

/** No members where there is no secret; null for one that cannot be decrypted, so that others are served all the same. */
function openSecrets(row: FetchedRow, { secrets, logger }: Deps): SecretMembers | null {
  const { sealed_id: id, workspace_id, owner_id, master_key_id, wrapped_key, ciphertext } = row;
  if (id === null && (row.data['secret_id'] ?? null) === null) return {};
  try {
    if (id === null || owner_id === null || master_key_id === null || wrapped_key === null || ciphertext === null) {
      throw new Error('the row of the secret is missing');
    }
    return secrets.open({ id, workspace_id, owner_id, master_key_id, wrapped_key, ciphertext });
  } catch (error) {
    logger.error({ err: error, [`${row.kind}_id`]: row.id }, 'the secrets of a record cannot be read');
    return null;
  }
}
