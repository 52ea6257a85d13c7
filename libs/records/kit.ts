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

// The interface between the kit and a kind of record. `Deps`: the kind's dependencies, beyond those of the kit.

/** The dependencies for storing records. */
export type StoreDeps = {
  db: Kysely<Database>;
  eventLog: EventLog;
  secrets: Secrets;
  /** Makes a change visible to this process before the caller is answered. */
  snapshot: {
    catchUp(): Promise<void>;
    /** The memory, in bytes, that the cached records of a workspace take up. Absent: not limited. */
    memoryOf?(workspaceId: string): number;
  };
  /** The database's clock, which decides when records expire. */
  clock: Clock;
  /** Reads pages of records within the memory budget. Absent: pages are not limited by it. */
  recordPages?: PageReads;
  /**
   * `memoryBytesMax`: the bytes of memory that the cached records of a workspace can take up, all kinds together. Absent:
   * not limited.
   */
  recordLimits?: { memoryBytesMax: number } | undefined;
};

/** The result of checking a request: the fields to store, and further results that are not stored with them. */
export type Checked<Data> = {
  /**
   * All fields when the record is created, later only those that change. Must be JSON, because it becomes part of an event.
   */
  data: Partial<Data>;
  /** The record's complete set of secrets, to be encrypted; absent: they do not change. */
  secrets?: SecretMembers;
  /** Members that only the answer to the creation shows, such as the value of a key. */
  shownOnce?: Record<string, string>;
};

/** `row` is null at creation. The record's stream is locked, and so is the slug. */
export type CheckContext<Data, Deps = StoreDeps> = Deps & {
  unit: UnitOfWork;
  workspaceId: string;
  caller: Caller;
  row: ResourceRow<Data> | null;
  /** The stored secrets; null if they cannot be decrypted. */
  readSecrets: () => Promise<SecretMembers | null>;
};

/** Changes to other records in the same transaction. */
export type FollowUp<Data, Subject, Deps = StoreDeps> = {
  /**
   * The streams that `run` loads or appends to. They are not locked yet, so `run` has to check their state again. `query`:
   * the query of the deletion.
   */
  streams(
    subject: Subject,
    deps: Deps,
    workspaceId: string,
    query: Record<string, unknown>,
  ): Promise<readonly string[]> | readonly string[];
  /** Throws GatewayError to refuse. `locked` is the value that `streams` returned. */
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

/** The functions that a kind's own routes share with the usual ones. */
export type RouteKit = {
  /** Creates a record and sends the answer, as POST does. `body` is a validated body of POST. */
  create: (body: Record<string, unknown>, request: Request, response: Response) => Promise<void>;
  /** The record that the path names, in the workspace that an organisation key can choose in `query`. */
  recordOf: (request: Request, query: { workspace_id?: unknown; organisation_id?: unknown }) => Promise<RecordName>;
  /** Throws not_found for a record that the caller cannot see, and forbidden for one that it can see but not change. */
  requireWrite: (request: Request, record: RecordName) => Promise<void>;
  actorOf: (request: Request) => Actor;
  /** The public forms of records, as in lists and single answers. */
  viewsOf: (rows: readonly ResourceRow[]) => Promise<{ id: string }[]>;
  /** The heading and the scope of the kind's routes. */
  read: { tag: string; scope: Scope };
  write: { tag: string; scope: Scope };
};

/** Further values that the generated routes of a kind share. */
export type KindRoutes = RouteKit & {
  /** The path of one record, and its path parameter. */
  onePath: string;
  name: 'slug' | 'id';
  params: z.ZodObject;
  /** The query members that choose a workspace or the organisation. */
  place: z.ZodObject;
  /** The errors of routes about one record. */
  found: Record<string, string>;
  schema: z.ZodObject;
};

/** The `object` member of a kind's records: by default its noun with hyphens. */
export const objectOf = ({ noun, names }: { noun: string; names: { object?: string } }): string =>
  names.object ?? noun.replaceAll('_', '-');

/** The first members of every record's public form. */
export const commonMembers = (
  kind: Parameters<typeof objectOf>[0] & { slugs?: object },
  { id, slug }: Pick<ResourceRow, 'id' | 'slug'>,
): object => ({ id, object: objectOf(kind), ...(kind.slugs ? { slug: slug ?? id } : {}) });

/**
 * The times of a record as shown in answers, in ISO 8601 (REC-1), if its schema has them: sessions, for example, have no
 * `updated_at`.
 */
export const timeMembers = (
  { viewSchema }: { viewSchema: z.ZodObject },
  { created_at, updated_at }: Pick<ResourceRow, 'created_at' | 'updated_at'>,
): object =>
  'last_updated_at' in viewSchema.shape
    ? { created_at: created_at.toISOString(), last_updated_at: updated_at.toISOString() }
    : {};

export const article = (noun: string): string => `${/^(?!us)[aeiou]/i.test(noun) ? 'an' : 'a'} ${noun}`;

/** Returns the form that names have in operation IDs: `ApiKeys` for `API keys` and `api_keys`. */
export const operationName = (name: string): string =>
  name
    .split(/[^A-Za-z]+/)
    .map((word) => word.slice(0, 1).toUpperCase() + word.slice(1).toLowerCase())
    .join('');

/** The author of a change: the caller that the request authenticated as, and the metadata for its events. */
export type Actor = { caller: Caller; metadata: EventMetadata };

/** A record is named by its slug (if the kind has slugs) or its ID; `workspaceId` null means all workspaces. */
export type RecordName = {
  workspaceId: string | null;
  name: string;
  /** Searches the deleted records instead; only for reading. */
  isDeleted?: boolean;
};

export type ResourceStore<Data> = {
  /**
   * Creates a record. A repeated call gets the first answer without the members that are shown only once, and `replayed` is
   * true. Throws the errors of `check`, and conflict (`slug_taken`).
   */
  create(
    call: CallIdentity,
    workspaceId: string,
    actor: Actor,
    input: Record<string, unknown>,
  ): Promise<{ record: object; shownOnce: Record<string, string>; replayed: boolean }>;
  /** Changes the members in `input` and keeps the rest. Throws not_found and the errors of `check`. */
  update(name: RecordName, actor: Actor, input: Record<string, unknown>): Promise<ResourceRow<Data>>;
  /** Deletes a record and its secrets, and frees its slug. Throws not_found. */
  remove(name: RecordName, actor: Actor, query?: Record<string, unknown>): Promise<ResourceRow<Data>>;
  /** Throws not_found, also for a record of another workspace. */
  get(name: RecordName): Promise<ResourceRow<Data>>;
  /** Returns up to `limit + 1` rows, newest first, and the total number. Throws invalid_request for an invalid cursor. */
  list(page: PageRequest): Promise<ResourcePage<ResourceRow<Data>>>;
  /** Like `list`, for the versions of a record. */
  listVersions(row: ResourceRow<Data>, page: PageRequest): Promise<ResourcePage<ResourceVersionRow<Data>>>;
  /** Puts a version into use, for kinds that publish on request. Has no effect if it already is in use. Throws not_found. */
  publish(name: RecordName, metadata: EventMetadata, number: number): Promise<ResourceRow<Data>>;
  /** Throws not_found. */
  getVersion(row: ResourceRow<Data>, number: number): Promise<ResourceVersionRow<Data>>;
  /**
   * Runs `decide` on the locked row of an active record and appends the events that it returns, for the kind's own events.
   * Throws not_found.
   */
  change(
    name: RecordName,
    metadata: EventMetadata,
    decide: (unit: UnitOfWork, row: ResourceRow<Data>) => Promise<ResourceEvent[]> | ResourceEvent[],
  ): Promise<ResourceRow<Data>>;
};
