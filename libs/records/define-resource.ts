import type { RawBuilder } from 'kysely';
import type { z } from 'zod';
import { addScopes } from '#libs/contracts/people/api-keys.ts';
import type { PlanCache } from '#libs/credentials/configs/plan-cache.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Upcasts } from '#libs/event-log/upcast.ts';
import type { Caller } from '#libs/http/caller.ts';
import type { Route, RouteText } from '#libs/http/route.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { LimitRule } from '#libs/limits/limit-rule.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import type { Checked, CheckContext, FollowUp, ResourceStore, RouteKit, StoreDeps } from './kit.ts';
import type { ResourceRow } from './resource-row.ts';
import type { Creation } from './traits/creation.ts';
import type { Portkey } from './traits/portkey.ts';
import type { Shared } from './traits/shared.ts';
import type { Slugs } from './traits/slugs.ts';
import type { Versions } from './traits/versions.ts';

/** The dependencies for creating cached entries. */
export type EntryContext = { logger: Logger; plans: PlanCache };

/** How every process caches a kind in memory, so that calls do not need the database. */
export type CachedKind<Data, Entry> = {
  /** `secrets` is null when they cannot be decrypted. If this throws, the record counts as unreadable. */
  toEntry(row: ResourceRow<Data>, secrets: SecretMembers | null, context: EntryContext): Entry;
  /** The entry keeps the record's data as JSON text, which takes up much less memory than the parsed value. */
  keepsText?: boolean;
  /**
   * Loaded even if the workspace's other records do not fit into memory: without its keys, a workspace could not free room.
   */
  alwaysLoaded?: boolean;
  /**
   * Whether records with an `expires_at` in the past are left out. Otherwise they are kept, so that a call gets an error
   * that says they expired.
   */
  leavesOutExpired?: boolean;
  /**
   * Further lookups that find the record, in addition to its `lookup`, and the entry for each: a replaced key works for a
   * while.
   */
  moreLookups?(row: ResourceRow<Data>, entry: Entry): readonly (readonly [lookup: string, entry: Entry])[];
  /** The budgets and rates that follow from a record. */
  limits?(row: ResourceRow<Data>): readonly LimitRule[];
};

/**
 * A kind of record that can be created, listed, retrieved, changed and deleted. This one object defines its events, its rows
 * and versions, its routes with their documentation, and its entry in the snapshot.
 */
export type ResourceDefinition<Shape extends z.ZodRawShape, Data extends object, Entry, Deps = StoreDeps> = {
  /** The noun in its event types and the `kind` of its rows, for example `config`. */
  noun: string;
  idPrefix: `${string}_`;
  /** Its scopes are `<area>.read` and `<area>.write`. */
  area: string;
  /** The path of the collection. The path of a record has one more segment. */
  path: `/v1/${string}`;
  /**
   * Names for people: `a config`, `configs`, and the heading in the documentation with a sentence `about` it, which one kind
   * per heading provides. `command`: its command group on the command line; default: the end of the path. `object`: the
   * `object` member of its records; default: the noun with hyphens.
   */
  names: { one: string; many: string; tag: string; about?: string; command?: string; object?: string };
  /** Descriptions of its routes, in addition to the texts that apply to every kind. */
  texts?: Partial<Record<'create' | 'list' | 'retrieve' | 'update' | 'delete' | 'publish', RouteText>>;
  /**
   * The owner of the records. `workspace` (default): only the workspace's keys see them. `organisation`: only organisation
   * keys see them. `itself`: the records are workspaces; organisation keys change them, and each workspace sees itself.
   */
  owner?: 'workspace' | 'organisation' | 'itself';
  /** The members of POST. PUT accepts any of them, except those in `changes.immutable`. */
  fields: Shape;
  /** Validates a request and turns it into the data to store. Default: stores the request unchanged. Throws GatewayError. */
  check?(
    input: Partial<z.output<z.ZodObject<Shape>>>,
    context: CheckContext<Data, Deps>,
  ): Checked<Data> | Promise<Checked<Data>>;
  /**
   * The public form, in addition to id, `object`, slug and times; it never contains a secret. `nowMs` is the database's
   * clock.
   */
  view(row: ResourceRow<Data>, nowMs: number): object;
  /** The schema that documents `view`. */
  viewSchema: z.ZodObject;
  /**
   * Query members of the list, in addition to those for paging: each maps to the field that is compared with it as text, or
   * to a condition on the rows of `resource`.
   */
  filters?: Record<string, ListFilter>;
  /** Routes in addition to the usual ones. */
  routes?(store: ResourceStore<Data>, deps: Deps, kit: RouteKit): Route[];

  // Optional traits, which most kinds do not have.
  slugs?: Slugs;
  versions?: Versions<Data, Deps>;
  shared?: Shared;
  /** Members that are encrypted and never returned. `check` can also return other secrets itself. */
  secrets?: readonly (keyof Shape & string)[];
  /** false: the records are not created by POST but in another way. */
  creation?: false | Creation<Data, Deps>;
  /**
   * How PUT changes records. `fields`: members that PUT accepts in another form than POST. `byPost`: POST does the same, for
   * OpenAI's clients. false: records cannot be changed.
   */
  changes?: false | { immutable?: readonly (keyof Shape & string)[]; fields?: z.ZodRawShape; byPost?: true };
  /** false: records are never deleted. */
  removal?: false | Removal<Data, Deps>;
  /** How `sluice apply` handles records in files. Absent: files cannot describe them. */
  applied?: Applied;
  portkey?: Portkey;
  history?: History<Data>;
  cached?: CachedKind<Data, Entry>;
  /**
   * Further members of answers about these records, in addition to their rows. They are read for all of the rows together.
   */
  related?(rows: readonly ResourceRow<Data>[], deps: Deps): Promise<(row: ResourceRow<Data>) => object>;
  /**
   * Further members of the answer to GET of one record. `viewSchema` lists them as optional; `query`: members of the query.
   */
  details?: {
    query?: z.ZodRawShape;
    read(row: ResourceRow<Data>, deps: Deps, query: Record<string, unknown>): Promise<object>;
  };
  /** Runs before each request about a workspace's records, and creates the ones that every workspace has. */
  prepare?(workspaceId: string, deps: Deps): Promise<void>;
  /**
   * Further locks that every creation, change and deletion takes, for rules about several records. They have the same form
   * as stream names. A function returns the locks of one workspace.
   */
  locks?: readonly string[] | ((workspaceId: string) => readonly string[]);
};

/** How `sluice apply` handles records in files. */
export type Applied = {
  /**
   * The kinds to which the records refer, which are applied before them. The value is the member in which the server
   * returns the ID of the other record and people write its slug; null if it returns what people wrote.
   */
  refersTo: Readonly<Record<string, string | null>>;
  /**
   * The paths of members that hold secrets. References are resolved only there: other members are shown to everyone who
   * can read the record, so a record from another author could publish files of the machine that applies it.
   */
  secrets?: RegExp;
  /** The secrets are credentials, which cannot be written into the file itself. */
  areCredentials?: boolean;
};

/** How records of a kind are deleted. */
type Removal<Data, Deps> = {
  /** The verb of the event that deletes a record. Default: `deleted`. */
  verb?: string;
  /** Deleted records are archived: lists and GET show them, and only them, with `status=archived`. */
  archives?: boolean;
  /** Runs in the transaction. Throws GatewayError to refuse. */
  check?(row: ResourceRow<Data>, caller: Caller, unit: UnitOfWork): void | Promise<void>;
  /** The changes that it makes to other records. */
  also?: FollowUp<Data, ResourceRow<Data>, Deps>;
  /** Further members of the query of DELETE, for `also`. */
  query?: z.ZodRawShape;
};

/** The parts of a kind's event history that it does not share with other kinds. */
type History<Data> = {
  /** Further events, by the verb of their type, and how each one changes the fields. Pure. */
  events?: Record<string, (data: Data, event: RecordedEvent<{ type: string; data: never }>) => Data>;
  /** Verbs of events that can begin a stream for a record that never came into existence, such as a refused sign-in. */
  neverActive?: readonly string[];
  /** Upcasts for events whose shape has changed since they were first written. */
  upcasts?: Upcasts;
  /** A value that finds the record across all workspaces; unique among the records of the kind, including deleted ones. */
  lookup?(data: Data): string | null;
};

export type ListFilter = { schema: z.ZodType } & (
  | { field: string; match: 'equal' | 'contains' }
  | { where: (value: never) => RawBuilder<unknown> }
);

// Any kind, as the kit sees it. `Data` occurs in both input and output positions, so a list of kinds needs the widest type.
// oxlint-disable-next-line typescript/no-explicit-any
export type AnyResource = ResourceDefinition<any, any, unknown, any>;

/** Infers the types of a definition in one place, and adds its scopes to those that keys can have. */
export function defineResource<Shape extends z.ZodRawShape, Data extends object, Entry = never, Deps = StoreDeps>(
  definition: ResourceDefinition<Shape, Data, Entry, Deps>,
): ResourceDefinition<Shape, Data, Entry, Deps> {
  addScopes(definition.area);
  return definition;
}
