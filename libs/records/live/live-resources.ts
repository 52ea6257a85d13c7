import { sql, type Kysely } from 'kysely';
import type { SealedSecret, SecretMembers, Secrets } from '#libs/secrets/secrets.ts';
import type { Database } from '#libs/database/schema.ts';
import type { LimitRule } from '#libs/limits/limit-rule.ts';
import { organisationId } from '#libs/http/caller.ts';
import type { AnyResource, EntryContext } from '#libs/records/define-resource.ts';
import { isOfWorkspace } from '#libs/records/traits/shared.ts';
import { recordBytesSql } from './record-bytes.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';

/** The active records of one kind in memory, as the entries that its `cached.toEntry` returns. */
export type LiveKind<Entry> = {
  readonly byId: ReadonlyMap<string, Entry>;
  /** By workspace, then slug. */
  readonly bySlug: ReadonlyMap<string, ReadonlyMap<string, Entry>>;
  readonly byLookup: ReadonlyMap<string, Entry>;
  /** Used to detect which records have changed since they were loaded. */
  readonly records: ReadonlyMap<string, LiveRecord<Entry>>;
  /** By ID. The other maps do not contain them. */
  readonly unreadable: ReadonlyMap<string, UnreadableRecord>;
};

/** A record that this process cannot read. Calls that need it are refused; all other calls are served. */
type UnreadableRecord = {
  readonly version: number;
  readonly workspaceId: string;
  readonly slug: string | null;
  readonly lookup: string | null;
  /** The name of its kind in messages. */
  readonly noun: string;
  readonly bytes: number;
};

type LiveRecord<Entry> = {
  readonly version: number;
  readonly workspaceId: string;
  readonly slug: string | null;
  readonly lookups: readonly (readonly [lookup: string, entry: Entry])[];
  readonly entry: Entry;
  /** The budgets and rates that the record defines. */
  readonly limits: readonly LimitRule[];
  /** The memory that it takes up, as estimated by `recordBytesSql`. */
  readonly bytes: number;
};

export type LiveKinds = ReadonlyMap<string, LiveKind<unknown>>;

/** A record that is listed but not loaded. */
type Measured = { version: number; bytes: number };

/** The cached records of all workspaces. */
export type LiveRecords = {
  readonly kinds: LiveKinds;
  /** The memory that the records of each workspace take up, including those that are left out. */
  readonly bytesOf: ReadonlyMap<string, number>;
  /** The memory that all loaded records take up. */
  readonly bytes: number;
  /** Workspaces whose records do not fit into memory, each with the records that are not loaded, by ID. */
  readonly leftOut: ReadonlyMap<string, ReadonlyMap<string, Measured>>;
};

export const noRecords: LiveRecords = { kinds: new Map(), bytesOf: new Map(), bytes: 0, leftOut: new Map() };

const empty: LiveKind<unknown> = {
  byId: new Map(),
  bySlug: new Map(),
  byLookup: new Map(),
  records: new Map(),
  unreadable: new Map(),
};

type Deps = EntryContext & {
  db: Kysely<Database>;
  secrets: Pick<Secrets, 'open'>;
  /** The memory that all records together can take up. */
  bytesMax: number;
  /** Called before any record is read, with the memory that they will take up. */
  onBytes?: ((bytes: number) => void) | undefined;
};

const noLimits: readonly LimitRule[] = [];

// Rows per query: decrypting takes about 20 µs per row, so this keeps it from blocking the event loop for long.
const sliceRows = 500;
/** The estimated memory of the rows of one query. A single larger row is read alone. */
const sliceBytes = 8_388_608;

/** The entries of one kind; empty until records have been loaded. */
export const liveKind = <Entry>(kinds: LiveKinds, { noun }: { noun: string }): LiveKind<Entry> =>
  (kinds.get(noun) ?? empty) as LiveKind<Entry>;

type Listed = Measured & { id: string; kind: string; workspaceId: string };

/**
 * Loads the active records of the cached kinds among `kinds`. Only records whose version differs from `previous` are fetched
 * and decrypted: one change among 10,000 keys costs a list of IDs, not 10,000 rows. A kind without a change keeps its maps.
 *
 * Records are measured before they are read. If they do not all fit into `bytesMax`, the workspaces with the largest records
 * are left out, except for records that are `alwaysLoaded` or belong to the organisation.
 */
export async function loadLiveRecords(
  deps: Deps,
  kinds: readonly AnyResource[],
  previous: LiveRecords,
): Promise<LiveRecords> {
  const cached = kinds.filter((kind) => kind.cached);
  if (cached.length === 0) return noRecords;
  const listed = await measure(deps, cached, previous, await list(deps, cached));
  const plan = chooseLoaded(cached, listed, deps.bytesMax);
  deps.onBytes?.(plan.bytes);
  report(deps, previous, plan);
  const isLoaded = (record: Listed): boolean => plan.leftOut.get(record.workspaceId)?.has(record.id) !== true;
  const byKind = Map.groupBy(plan.leftOut.size === 0 ? listed : listed.filter(isLoaded), ({ kind }) => kind);
  const loaded = new Map<string, LiveKind<unknown>>();
  for (const kind of cached) {
    loaded.set(kind.noun, await renew(deps, kind, liveKind(previous.kinds, kind), byKind.get(kind.noun) ?? []));
  }
  return { kinds: loaded, ...plan };
}

/** All records, not yet measured. */
async function list({ db }: Deps, cached: readonly AnyResource[]): Promise<Listed[]> {
  const leavingOut = cached.filter((kind) => kind.cached?.leavesOutExpired).map((kind) => kind.noun);
  const { rows } = await sql<Listed>`
    select id, kind, workspace_id as "workspaceId", version, 0 as bytes from resource
    where kind = any(${cached.map((kind) => kind.noun)}::text[]) and deleted_at is null
      and workspace_id <> all (array(select id from resource where kind = 'workspace' and deleted_at is not null))
      and (kind <> all(${leavingOut}::text[]) or data ->> 'expires_at' is null
        or (data ->> 'expires_at')::timestamptz > clock_timestamp())`.execute(db);
  return rows;
}

/** Sets the size of each record. Only changed records are measured. */
async function measure(
  { db }: Deps,
  cached: readonly AnyResource[],
  previous: LiveRecords,
  listed: Listed[],
): Promise<Listed[]> {
  const known = ({ id, kind, workspaceId, version }: Listed): number | undefined => {
    const { records, unreadable } = liveKind(previous.kinds, { noun: kind });
    const before: Measured | undefined =
      records.get(id) ?? unreadable.get(id) ?? previous.leftOut.get(workspaceId)?.get(id);
    return before?.version === version ? before.bytes : undefined;
  };
  const changed = listed.filter((record) => known(record) === undefined).map(({ id }) => id);
  const sizes = new Map<string, number>();
  for (let from = 0; from < changed.length; from += measuredRows) {
    const { rows } = await sql<{ id: string; bytes: number }>`
      select resource.id, ${recordBytesSql(cached)} + coalesce(octet_length(ciphertext), 0) as bytes
      from ${withSecrets} where resource.id = any(${changed.slice(from, from + measuredRows)}::text[])`.execute(db);
    for (const { id, bytes } of rows) sizes.set(id, bytes);
  }
  for (const record of listed) record.bytes = sizes.get(record.id) ?? known(record) ?? 0;
  return listed;
}

const measuredRows = 10_000;

type LoadPlan = Omit<LiveRecords, 'kinds'>;

/** Decides which workspaces are left out, starting with the largest, until the others fit. */
function chooseLoaded(cached: readonly AnyResource[], listed: readonly Listed[], bytesMax: number): LoadPlan {
  const bytesOf = new Map<string, number>();
  let bytes = 0;
  for (const record of listed) {
    bytes += record.bytes;
    bytesOf.set(record.workspaceId, (bytesOf.get(record.workspaceId) ?? 0) + record.bytes);
  }
  const leftOut = new Map<string, Map<string, Measured>>();
  if (bytes <= bytesMax) return { bytesOf, bytes, leftOut };
  const optional = new Set(cached.filter(isOptional).map(({ noun }) => noun));
  const candidates = [
    ...Map.groupBy(
      listed.filter(({ kind, workspaceId }) => optional.has(kind) && workspaceId !== organisationId),
      ({ workspaceId }) => workspaceId,
    ),
  ]
    .map(([workspaceId, records]) => ({ workspaceId, records, size: sum(records) }))
    .toSorted((one, other) => other.size - one.size);
  for (const { workspaceId, records, size } of candidates) {
    if (bytes <= bytesMax) break;
    bytes -= size;
    leftOut.set(workspaceId, new Map(records.map((record) => [record.id, record])));
  }
  return { bytesOf, bytes, leftOut };
}

const isOptional = (kind: AnyResource): boolean => isOfWorkspace(kind) && kind.cached?.alwaysLoaded !== true;

const sum = (records: readonly Measured[]): number => records.reduce((total, { bytes }) => total + bytes, 0);

/** Logs each workspace once when it is left out, and once when it is loaded again. */
function report({ logger, bytesMax }: Deps, previous: LiveRecords, { leftOut, bytesOf }: LoadPlan): void {
  for (const id of leftOut.keys()) {
    if (previous.leftOut.has(id)) continue;
    const fields = { workspace_id: id, bytes: bytesOf.get(id), bytes_max_of_all: bytesMax };
    logger.error(
      fields,
      'the records of a workspace do not fit into memory; its calls are rejected until some are deleted',
    );
  }
  for (const id of previous.leftOut.keys()) {
    if (!leftOut.has(id)) logger.info({ workspace_id: id }, 'the records of the workspace fit into memory again');
  }
}

async function renew(
  deps: Deps,
  kind: AnyResource,
  previous: LiveKind<unknown>,
  listed: readonly Listed[],
): Promise<LiveKind<unknown>> {
  const records = new Map<string, LiveRecord<unknown>>();
  const unreadable = new Map<string, UnreadableRecord>();
  const stale: Listed[] = [];
  for (const listedRecord of listed) {
    const { id, version } = listedRecord;
    const record = previous.records.get(id);
    const unreadableRecord = previous.unreadable.get(id);
    if (record?.version === version) records.set(id, record);
    else if (unreadableRecord?.version === version) unreadable.set(id, unreadableRecord);
    else stale.push(listedRecord);
  }
  const isSame = records.size === previous.records.size && unreadable.size === previous.unreadable.size;
  if (stale.length === 0 && isSame) return previous;
  for (const slice of slicesOf(stale)) {
    for (const row of await fetchRows(deps, [...slice.keys()])) {
      const { id, version, workspace_id: workspaceId, slug, lookup } = row;
      const bytes = slice.get(id) ?? 0;
      try {
        const entry = kind.cached?.toEntry(row, openSecrets(row, deps), deps);
        const own = lookup === null ? [] : [[lookup, entry] as const];
        const lookups = [...own, ...(kind.cached?.moreLookups?.(row, entry) ?? [])];
        const limits = kind.cached?.limits?.(row) ?? noLimits;
        records.set(id, { version, workspaceId, slug, lookups, entry, limits, bytes });
      } catch (error) {
        const fields = { err: error, [`${kind.noun}_id`]: id, workspace_id: workspaceId };
        deps.logger.error(fields, 'a stored record cannot be read; calls that need it are rejected');
        unreadable.set(id, { version, workspaceId, slug, lookup, noun: kind.names.one, bytes });
      }
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
  return { byId: new Map([...records].map(([id, { entry }]) => [id, entry])), bySlug, byLookup, records, unreadable };
}

/** Groups the records for reading, one query per group. Each group maps IDs to sizes. */
function* slicesOf(records: readonly Listed[]): Generator<Map<string, number>> {
  let slice = new Map<string, number>();
  let held = 0;
  for (const { id, bytes } of records) {
    if (slice.size === sliceRows || (slice.size > 0 && held + bytes > sliceBytes)) {
      yield slice;
      slice = new Map();
      held = 0;
    }
    slice.set(id, bytes);
    held += bytes;
  }
  if (slice.size > 0) yield slice;
}

type Nullable<Type> = { [Name in keyof Type]: Type[Name] | null };
type FetchedRow = ResourceRow & Nullable<Omit<SealedSecret, 'id' | 'workspace_id'>> & { sealed_id: string | null };

const withSecrets = sql`resource left join secret on secret.workspace_id = resource.workspace_id
  and secret.owner_id = resource.id || coalesce('@' || resource.last_version, '')`;

async function fetchRows({ db }: Deps, ids: readonly string[]): Promise<FetchedRow[]> {
  const { rows } = await sql<FetchedRow>`
    select resource.*, secret.id as sealed_id, owner_id, master_key_id, wrapped_key, ciphertext
    from ${withSecrets}
    where resource.id = any(${ids}::text[]) and deleted_at is null`.execute(db);
  return rows;
}

/**
 * Returns no members if the record has no secret, and null for a secret that cannot be decrypted, so that other records are
 * still served.
 */
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
