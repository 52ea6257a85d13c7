import type { z } from 'zod';
import type { SecretMembers, Secrets } from '#libs/access/secrets.ts';
import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata, RecordedEvent } from '#libs/event-log/event.ts';
import type { CallIdentity } from '#libs/event-log/idempotency.ts';
import type { Upcasts } from '#libs/event-log/upcast.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Caller } from '#libs/http/caller.ts';
import type { Route } from '#libs/http/route.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { PageRequest, ResourceEvent, ResourceRow, ResourceVersionRow } from './resource-row.ts';

/** What a request was judged to be: the fields to store, and what is not stored with them. */
export type Checked<Data> = {
  /** At creation all fields, later those that change. Must be JSON, because it becomes an event. */
  data: Partial<Data>;
  /** The record's secrets as a whole, to be encrypted; absent: they stay as they are. */
  secrets?: SecretMembers;
  /** Members of the answer to the creation that are shown only once, such as the value of a key. */
  shownOnce?: Record<string, string>;
};

/** `row` is null at creation; its stream is locked, and so is the slug. */
export type CheckContext<Data> = StoreDeps & {
  unit: UnitOfWork;
  workspaceId: string;
  caller: Caller;
  row: ResourceRow<Data> | null;
  /** The stored secrets. Throws SecretUnreadableError. */
  readSecrets: () => Promise<SecretMembers>;
};

/** How a kind is held in memory by every process, so that calls need no database. */
export type CachedKind<Data, Entry> = {
  /** Must not throw. `secrets` is null when they cannot be decrypted. */
  toEntry(row: ResourceRow<Data>, secrets: SecretMembers | null, logger: Logger): Entry;
  /** Whether those with an `expires_at` in the past are left out. Otherwise they are kept, so that a call can be told. */
  leavesOutExpired?: boolean;
};

/**
 * A kind of record that is created, listed, retrieved, changed and deleted. From this one object come its events, its
 * rows and versions, its routes with their documentation, and its entry in the snapshot.
 */
export type ResourceDefinition<Shape extends z.ZodRawShape, Data extends object, Entry> = {
  /** The noun of its events and the `kind` of its rows, such as `config`. */
  noun: string;
  idPrefix: `${string}_`;
  /** Its scopes are `<area>.read` and `<area>.write`. */
  area: string;
  /** Of the collection; one record lies one segment below. */
  path: `/v1/${string}`;
  /** For people: `a config`, `configs`, and the heading in the documentation. */
  names: { one: string; many: string; tag: string };
  /**
   * Who owns the records. `workspace` (default): only its keys see them. `organisation`: only keys of the organisation see
   * them. `itself`: the records are workspaces; keys of the organisation change them, and each workspace sees itself.
   */
  owner?: 'workspace' | 'organisation' | 'itself';
  /** The members of POST. PUT takes each of them alone, without those of `immutable`. */
  fields: Shape;
  immutable?: readonly (keyof Shape & string)[];
  /** Members that PUT takes in another form than POST. */
  updateFields?: z.ZodRawShape;
  /** false: a record cannot be changed, only deleted. */
  hasUpdate?: boolean;
  /** Whether a record is addressed by a slug, given or made of `name`; its id does as well. Otherwise by id alone. */
  slug?: boolean;
  /** Members that are encrypted and never come back. `check` may also return other secrets itself. */
  secrets?: readonly (keyof Shape & string)[];
  /** Fields whose every change is a new, numbered version, kept for good. */
  versioned?: {
    fields: readonly (keyof Data & string)[];
    /** `at_once`: the newest version is the one in use. `on_request`: a `version_published` event puts one into use. */
    publish: 'at_once' | 'on_request';
    /** What of a version's fields may be shown; default: all. */
    shown?(data: Partial<Data>): object;
  };
  /** Judges a request and makes of it what is stored. Default: stores it as it is. Throws GatewayError. */
  check?(
    input: Partial<z.output<z.ZodObject<Shape>>>,
    context: CheckContext<Data>,
  ): Checked<Data> | Promise<Checked<Data>>;
  /** Throws for a repeated creation whose answer cannot be given again, because part of it was shown only once. */
  refuseReplay?(record: object): void;
  /** Runs in the transaction that deletes a record. Throws GatewayError to refuse. */
  checkRemoval?(row: ResourceRow<Data>, caller: Caller): void;
  /** The deleting event, when it is not `deleted`. `isShown`: such records are still listed and retrieved. */
  removal?: { verb: string; isShown: boolean };
  /** Further events, by the verb of their type, and what each makes of the fields. Pure. */
  events?: Record<string, (data: Data, event: RecordedEvent<{ type: string; data: never }>) => Data>;
  /** For events whose shape has changed since they were first written. */
  upcasts?: Upcasts;
  /** What a record is found by in all workspaces; unique among the records of the kind, deleted ones too. */
  lookup?(data: Data): string | null;
  /** The public form; never a secret. `nowMs` is the database's clock. Default: id, slug, the fields and the times. */
  view?(row: ResourceRow<Data>, nowMs: number): object;
  /** Documents `view`. */
  viewSchema?: z.ZodObject;
  /** Members of the query of the list, beside those of paging, and the fields that they are compared with as text. */
  filters?: Record<string, { schema: z.ZodType; field: string; match: 'equal' | 'contains' }>;
  cached?: CachedKind<Data, Entry>;
  /** Routes beside the usual ones. */
  routes?(store: ResourceStore<Data>, deps: StoreDeps): Route[];
};

// What the kit knows of any kind. `Data` stands in both directions, so a list of kinds needs the widest form.
// oxlint-disable-next-line typescript/no-explicit-any
export type AnyResource = ResourceDefinition<any, any, unknown>;

/** Names the types of a definition once, where it is made. */
export function defineResource<Shape extends z.ZodRawShape, Data extends object, Entry = never>(
  definition: ResourceDefinition<Shape, Data, Entry>,
): ResourceDefinition<Shape, Data, Entry> {
  return definition;
}

/** What records are kept with. */
export type StoreDeps = {
  db: Kysely<Database>;
  eventLog: EventLog;
  secrets: Secrets;
  /** Lets this process see its own change before the caller is answered. */
  snapshot: { catchUp(): Promise<void> };
  /** The database's: records expire by it. */
  clock: Clock;
  /** Throws for a URL that could never be called (libs/calls/upstream/egress.ts `check`). */
  checkDestination: (url: URL) => void;
};

/** Who changes something: what the request authenticated as, and what its events say of it. */
export type Actor = { caller: Caller; metadata: EventMetadata };

/** A record is named by its slug (where the kind has them) or its id; `workspaceId` null means all workspaces. */
export type RecordName = { workspaceId: string | null; name: string };

export type ResourceStore<Data> = {
  /**
   * Creates a record. A repeat of the call gets the first answer, without what is shown only once: `replayed` says so.
   * Throws what `check` throws, and conflict (`slug_taken`).
   */
  create(
    call: CallIdentity,
    workspaceId: string,
    actor: Actor,
    input: Record<string, unknown>,
  ): Promise<{ record: object; shownOnce: Record<string, string>; replayed: boolean }>;
  /** Changes what `input` names and leaves the rest. Throws not_found and what `check` throws. */
  update(name: RecordName, actor: Actor, input: Record<string, unknown>): Promise<ResourceRow<Data>>;
  /** Deletes a record and its secrets, and frees its slug. Throws not_found. */
  remove(name: RecordName, actor: Actor): Promise<ResourceRow<Data>>;
  /** Throws not_found, also for a record of another workspace. */
  get(name: RecordName): Promise<ResourceRow<Data>>;
  /** Up to `limit + 1` rows, newest first, and how many there are. Throws invalid_request for a wrong cursor. */
  list(page: PageRequest): Promise<{ rows: ResourceRow<Data>[]; total: number }>;
  /** The same of a record's versions. */
  listVersions(row: ResourceRow<Data>, page: PageRequest): Promise<{ rows: ResourceVersionRow<Data>[]; total: number }>;
  /** Puts a version into use, of a kind that publishes on request. The one in use: nothing happens. Throws not_found. */
  publish(name: RecordName, metadata: EventMetadata, number: number): Promise<ResourceRow<Data>>;
  /** Throws not_found. */
  getVersion(row: ResourceRow<Data>, number: number): Promise<ResourceVersionRow<Data>>;
  /**
   * Runs `decide` on the locked row of a living record and appends what it returns, for the kind's own events.
   * Throws not_found.
   */
  change(
    name: RecordName,
    metadata: EventMetadata,
    decide: (unit: UnitOfWork, row: ResourceRow<Data>) => Promise<ResourceEvent[]> | ResourceEvent[],
  ): Promise<ResourceRow<Data>>;
};
