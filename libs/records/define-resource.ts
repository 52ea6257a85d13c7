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

/** What entries are made with. */
export type EntryContext = { logger: Logger; plans: PlanCache };

/** How a kind is held in memory by every process, so that calls need no database. */
export type CachedKind<Data, Entry> = {
  /** `secrets` is null when they cannot be decrypted. A record for which it throws is unreadable. */
  toEntry(row: ResourceRow<Data>, secrets: SecretMembers | null, context: EntryContext): Entry;
  /** The entry keeps the record's data as JSON text, which takes up much less memory than the value. */
  keepsText?: boolean;
  /** Loaded even if the other records of the workspace do not fit into memory: without its keys, it could not free room. */
  alwaysLoaded?: boolean;
  /** Whether those with an `expires_at` in the past are left out. Otherwise they are kept, so that a call gets an error that says so. */
  leavesOutExpired?: boolean;
  /** What else it is found by, beside its `lookup`, and as which entry: a key that was replaced works for a while. */
  moreLookups?(row: ResourceRow<Data>, entry: Entry): readonly (readonly [lookup: string, entry: Entry])[];
  /** The budgets and rates that follow from a record. */
  limits?(row: ResourceRow<Data>): readonly LimitRule[];
};

/**
 * A kind of record that is created, listed, retrieved, changed and deleted. From this one object come its events, its
 * rows and versions, its routes with their documentation, and its entry in the snapshot.
 */
export type ResourceDefinition<Shape extends z.ZodRawShape, Data extends object, Entry, Deps = StoreDeps> = {
  /** The noun of its events and the `kind` of its rows, such as `config`. */
  noun: string;
  idPrefix: `${string}_`;
  /** Its scopes are `<area>.read` and `<area>.write`. */
  area: string;
  /** Of the collection; one record lies one segment below. */
  path: `/v1/${string}`;
  /**
   * For people: `a config`, `configs`, and the heading in the documentation with a sentence `about` it, which one kind of
   * each heading has. `command`: its group of commands on the command line; default: the end of the path. `object`: the member of
   * that name in its records; default: the noun with hyphens.
   */
  names: { one: string; many: string; tag: string; about?: string; command?: string; object?: string };
  /** How its routes are described, in addition to the texts that hold for every kind. */
  texts?: Partial<Record<'create' | 'list' | 'retrieve' | 'update' | 'delete' | 'publish', RouteText>>;
  /**
   * Who owns the records. `workspace` (default): only its keys see them. `organisation`: only keys of the organisation see
   * them. `itself`: the records are workspaces; keys of the organisation change them, and each workspace sees itself.
   */
  owner?: 'workspace' | 'organisation' | 'itself';
  /** The members of POST. PUT takes each of them alone, without those of `changes.immutable`. */
  fields: Shape;
  /** Judges a request and makes of it what is stored. Default: stores it as it is. Throws GatewayError. */
  check?(
    input: Partial<z.output<z.ZodObject<Shape>>>,
    context: CheckContext<Data, Deps>,
  ): Checked<Data> | Promise<Checked<Data>>;
  /** The public form beyond id, `object`, slug and times; never a secret. `nowMs` is the database's clock. */
  view(row: ResourceRow<Data>, nowMs: number): object;
  /** Documents `view`. */
  viewSchema: z.ZodObject;
  /**
   * Members of the query of the list, beside those of paging: the fields that they are compared with as text, or a
   * condition on the rows of `resource`.
   */
  filters?: Record<string, ListFilter>;
  /** Routes beside the usual ones. */
  routes?(store: ResourceStore<Data>, deps: Deps, kit: RouteKit): Route[];

  // Traits, which most kinds do not have.
  slugs?: Slugs;
  versions?: Versions<Data, Deps>;
  shared?: Shared;
  /** Members that are encrypted and never come back. `check` may also return other secrets itself. */
  secrets?: readonly (keyof Shape & string)[];
  /** false: records come about in another way than by POST. */
  creation?: false | Creation<Data, Deps>;
  /** How records change by PUT. `fields`: members that PUT takes in another form than POST. false: they do not. */
  changes?: false | { immutable?: readonly (keyof Shape & string)[]; fields?: z.ZodRawShape };
  /** false: records are never deleted. */
  removal?: false | Removal<Data, Deps>;
  portkey?: Portkey;
  history?: History<Data>;
  cached?: CachedKind<Data, Entry>;
  /** What the answers about these records have beyond their rows, read for all of them at once. */
  related?(rows: readonly ResourceRow<Data>[], deps: Deps): Promise<(row: ResourceRow<Data>) => object>;
  /** What GET of one record has beyond that. `viewSchema` has these members as optional; `query`: members of the query. */
  details?: {
    query?: z.ZodRawShape;
    read(row: ResourceRow<Data>, deps: Deps, query: Record<string, unknown>): Promise<object>;
  };
  /** Runs before each request about a workspace's records, and makes those that every workspace has. */
  prepare?(workspaceId: string, deps: Deps): Promise<void>;
  /**
   * What every creation, change and deletion locks too, for rules about several records; names like those of streams. A
   * function: those of one workspace.
   */
  locks?: readonly string[] | ((workspaceId: string) => readonly string[]);
};

/** How records of a kind are deleted. */
type Removal<Data, Deps> = {
  /** Of the deleting event. Default: `deleted`. */
  verb?: string;
  /** Deleted records are archived: lists and GET show them, and them alone, with `status=archived`. */
  archives?: boolean;
  /** Runs in the transaction. Throws GatewayError to refuse. */
  check?(row: ResourceRow<Data>, caller: Caller, unit: UnitOfWork): void | Promise<void>;
  /** What it changes of other records. */
  also?: FollowUp<Data, ResourceRow<Data>, Deps>;
  /** Further members of the query of DELETE, for `also`. */
  query?: z.ZodRawShape;
};

/** What the events of a kind have beyond those of every kind. */
type History<Data> = {
  /** Further events, by the verb of their type, and what each makes of the fields. Pure. */
  events?: Record<string, (data: Data, event: RecordedEvent<{ type: string; data: never }>) => Data>;
  /** Verbs of events that can begin a stream: of a record that never came about, such as a refused sign-in. */
  neverActive?: readonly string[];
  /** For events whose shape has changed since they were first written. */
  upcasts?: Upcasts;
  /** What a record is found by in all workspaces; unique among the records of the kind, deleted ones too. */
  lookup?(data: Data): string | null;
};

export type ListFilter = { schema: z.ZodType } & (
  | { field: string; match: 'equal' | 'contains' }
  | { where: (value: never) => RawBuilder<unknown> }
);

// What the kit knows of any kind. `Data` stands in both directions, so a list of kinds needs the widest form.
// oxlint-disable-next-line typescript/no-explicit-any
export type AnyResource = ResourceDefinition<any, any, unknown, any>;

/** Names the types of a definition once, where it is made, and adds its scopes to those that keys can have. */
export function defineResource<Shape extends z.ZodRawShape, Data extends object, Entry = never, Deps = StoreDeps>(
  definition: ResourceDefinition<Shape, Data, Entry, Deps>,
): ResourceDefinition<Shape, Data, Entry, Deps> {
  addScopes(definition.area);
  return definition;
}
