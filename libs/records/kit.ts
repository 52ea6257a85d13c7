import type { Request, Response } from 'express';
import type { z } from 'zod';
import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog, UnitOfWork } from '#libs/event-log/event-log.ts';
import type { CallIdentity } from '#libs/event-log/idempotency.ts';
import type { PageReads } from '#libs/http/answers/page-reads.ts';
import type { Caller, Scope } from '#libs/http/caller.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { SecretMembers, Secrets } from '#libs/secrets/secrets.ts';
import type { PageRequest, ResourceEvent, ResourcePage, ResourceRow, ResourceVersionRow } from './resource-row.ts';

// What the kit gives to a kind of record. `Deps`: what the kind is kept with, beyond what the kit needs.

/** What records are kept with. */
export type StoreDeps = {
  db: Kysely<Database>;
  eventLog: EventLog;
  secrets: Secrets;
  /** Lets this process see its own change before the caller is answered. */
  snapshot: {
    catchUp(): Promise<void>;
    /** The memory that the cached records of a workspace take up, in bytes. Absent: not limited. */
    memoryOf?(workspaceId: string): number;
  };
  /** The database's: records expire by it. */
  clock: Clock;
  /** Reads pages of records within the memory budget. Absent: without it. */
  recordPages?: PageReads;
  /** `memoryBytesMax`: bytes of memory that the cached records of a workspace take up, all kinds together. Absent: not limited. */
  recordLimits?: { memoryBytesMax: number } | undefined;
};

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
export type CheckContext<Data, Deps = StoreDeps> = Deps & {
  unit: UnitOfWork;
  workspaceId: string;
  caller: Caller;
  row: ResourceRow<Data> | null;
  /** The stored secrets; null when they cannot be decrypted. */
  readSecrets: () => Promise<SecretMembers | null>;
};

/** Changes of other records in the transaction of one. */
export type FollowUp<Data, Subject, Deps = StoreDeps> = {
  /**
   * The streams that `run` loads or appends to. They are not locked yet: `run` has to look again. `query`: of the deletion.
   */
  streams(
    subject: Subject,
    deps: Deps,
    workspaceId: string,
    query: Record<string, unknown>,
  ): Promise<readonly string[]> | readonly string[];
  /** Throws GatewayError to refuse. `locked` is what `streams` returned. */
  run(
    unit: UnitOfWork,
    subject: Subject,
    context: Deps & {
      caller: Caller;
      row: ResourceRow<Data>;
      locked: readonly string[];
      query: Record<string, unknown>;
    },
  ): Promise<void>;
};

/** What a kind's own routes share with the usual ones. */
export type RouteKit = {
  /** Answers with a new record, as POST does: `body` is that of POST, checked. */
  create(body: Record<string, unknown>, request: Request, response: Response): Promise<void>;
  /** The record that the path names, in the workspace that a key of the organisation may choose by `query`. */
  recordOf: (request: Request, query: { workspace_id?: unknown; organisation_id?: unknown }) => Promise<RecordName>;
  /** Throws not_found for a record that the caller cannot see, and forbidden for one that it may only see. */
  requireWrite(request: Request, record: RecordName): Promise<void>;
  actorOf(request: Request): Actor;
  /** The public forms of records, as lists and single answers have them. */
  viewsOf: (rows: readonly ResourceRow[]) => Promise<{ id: string }[]>;
  /** The heading and the scope of the kind's routes. */
  read: { tag: string; scope: Scope };
  write: { tag: string; scope: Scope };
};

/** What the routes that the kit makes for a kind share beyond that. */
export type KindRoutes = RouteKit & {
  /** The path of one record, and its parameter. */
  onePath: string;
  name: 'slug' | 'id';
  params: z.ZodObject;
  /** The query that chooses a workspace, or the organisation. */
  place: z.ZodObject;
  /** The errors of routes about one record. */
  found: Record<string, string>;
  schema: z.ZodObject;
};

/** The `object` member of a kind's records: by default its noun with hyphens. */
export const objectOf = ({ noun, names }: { noun: string; names: { object?: string } }): string =>
  names.object ?? noun.replaceAll('_', '-');

/** The members that the public form of every record begins with. */
export const commonMembers = (
  kind: Parameters<typeof objectOf>[0] & { slugs?: object },
  { id, slug }: Pick<ResourceRow, 'id' | 'slug'>,
): object => ({ id, object: objectOf(kind), ...(kind.slugs ? { slug: slug ?? id } : {}) });

/** The times of a record as answers have them, ISO 8601 (REC-1), if its schema has both: a session has no changes. */
export const timeMembers = (
  { viewSchema }: { viewSchema: z.ZodObject },
  { created_at, updated_at }: Pick<ResourceRow, 'created_at' | 'updated_at'>,
): object =>
  'last_updated_at' in viewSchema.shape
    ? { created_at: created_at.toISOString(), last_updated_at: updated_at.toISOString() }
    : {};

export const article = (noun: string): string => `${/^(?!us)[aeiou]/i.test(noun) ? 'an' : 'a'} ${noun}`;

/** `ApiKeys` for `API keys` and `api_keys`: the form of names in operation IDs. */
export const operationName = (name: string): string =>
  name
    .split(/[^A-Za-z]+/)
    .map((word) => word.slice(0, 1).toUpperCase() + word.slice(1).toLowerCase())
    .join('');

/** Who changes something: what the request authenticated as, and what its events say of it. */
export type Actor = { caller: Caller; metadata: EventMetadata };

/** A record is named by its slug (where the kind has them) or its id; `workspaceId` null means all workspaces. */
export type RecordName = {
  workspaceId: string | null;
  name: string;
  /** Looks among the deleted records; only for reading. */
  isDeleted?: boolean;
};

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
  remove(name: RecordName, actor: Actor, query?: Record<string, unknown>): Promise<ResourceRow<Data>>;
  /** Throws not_found, also for a record of another workspace. */
  get(name: RecordName): Promise<ResourceRow<Data>>;
  /** Up to `limit + 1` rows, newest first, and how many there are. Throws invalid_request for a wrong cursor. */
  list(page: PageRequest): Promise<ResourcePage<ResourceRow<Data>>>;
  /** The same of a record's versions. */
  listVersions(row: ResourceRow<Data>, page: PageRequest): Promise<ResourcePage<ResourceVersionRow<Data>>>;
  /** Puts a version into use, of a kind that publishes on request. The one in use: nothing happens. Throws not_found. */
  publish(name: RecordName, metadata: EventMetadata, number: number): Promise<ResourceRow<Data>>;
  /** Throws not_found. */
  getVersion(row: ResourceRow<Data>, number: number): Promise<ResourceVersionRow<Data>>;
  /**
   * Runs `decide` on the locked row of an active record and appends what it returns, for the kind's own events.
   * Throws not_found.
   */
  change(
    name: RecordName,
    metadata: EventMetadata,
    decide: (unit: UnitOfWork, row: ResourceRow<Data>) => Promise<ResourceEvent[]> | ResourceEvent[],
  ): Promise<ResourceRow<Data>>;
};
