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
import type { ResourceRow, ResourceVersionRow } from './resource-row.ts';

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
   * each heading has. `command`: its group of commands on the command line; default: the end of the path.
   */
  names: { one: string; many: string; tag: string; about?: string; command?: string };
  /** How its routes are described, in addition to the texts that hold for every kind. */
  texts?: Partial<Record<'create' | 'list' | 'retrieve' | 'update' | 'delete' | 'publish', RouteText>>;
  /**
   * Who owns the records. `workspace` (default): only its keys see them. `organisation`: only keys of the organisation see
   * them. `itself`: the records are workspaces; keys of the organisation change them, and each workspace sees itself.
   */
  owner?: 'workspace' | 'organisation' | 'itself';
  /**
   * Of a workspace's kind: whether there are also records of the organisation, which every workspace sees. A key of the
   * organisation makes one by a body with `organisation_id` and without `workspace_id`.
   */
  hasShared?: boolean;
  /** Which of the organisation's records a workspace sees, as a condition on rows of `resource`. Default: all. */
  sharedWith?(workspaceId: string): RawBuilder<unknown>;
  /** Who acts for the organisation and names no workspace sees all of the records, and makes one of the organisation. */
  isOrganisationFirst?: boolean;
  /** The `object` member of its records. Default: the noun with hyphens. */
  object?: string;
  /** The members of POST. PUT takes each of them alone, without those of `immutable`. */
  fields: Shape;
  immutable?: readonly (keyof Shape & string)[];
  /** Members that PUT takes in another form than POST. */
  updateFields?: z.ZodRawShape;
  /** false: records come about in another way than by POST. */
  hasCreate?: boolean;
  /** false: a record cannot be changed, only deleted. */
  hasUpdate?: boolean;
  /** false: a record is never deleted. */
  hasRemove?: boolean;
  /** Whether a record is addressed by a slug, given or made of `name`; its id does as well. Otherwise by id alone. */
  slug?: boolean;
  /** Kinds that share their slugs, this one among them; the first one names the lock. Default: this one alone. */
  slugKinds?: readonly string[];
  /** Whether slugs are unique in the whole installation, and not in one workspace alone. */
  hasGlobalSlugs?: boolean;
  /** Slugs that no record gets, because its path would be another's. */
  reservedSlugs?: readonly string[];
  /** Members that are encrypted and never come back. `check` may also return other secrets itself. */
  secrets?: readonly (keyof Shape & string)[];
  /** Fields whose every change is a new, numbered version, kept for good. */
  versioned?: {
    fields: readonly (keyof Data & string)[];
    /** `at_once`: the newest version is the one in use. `on_request`: a `version_published` event puts one into use. */
    publish: 'at_once' | 'on_request';
    /** The list of versions is a bare array. */
    listsBare?: boolean;
    /** What of a version's fields may be shown, with what else its answer has; default: all fields. */
    shown?(data: Partial<Data>, head: ResourceRow<Data>, version: ResourceVersionRow<Data>): object;
    /** Documents the members that `shown` adds. */
    shownSchema?: z.ZodRawShape;
    /**
     * The public form of a record with one of its versions, instead of the kit's; `list`: among its versions. A change is
     * then answered with the version that it made.
     */
    view?(row: ResourceRow<Data>, version: ResourceVersionRow<Data>, place: 'list' | 'alone'): object;
    /** The number that a name stands for, beside numbers and `latest`, such as `production`. */
    numberOf?(row: ResourceRow<Data>, name: string, deps: Deps): Promise<number | null>;
  };
  /** The limit of its records in a workspace, and the variable that sets it. Absent: none, or `check` has its own. */
  countLimit?: (deps: Deps) => { max: number; variable: string };
  /** Its list is a bare array, as in Portkey's interface (LIST-3). */
  listsBare?: boolean;
  /** Runs before each request about a workspace's records, and makes those that every workspace has. */
  prepare?(workspaceId: string, deps: Deps): Promise<void>;
  /** What the answers about these records have beyond their rows, read for all of them at once. */
  related?(rows: readonly ResourceRow<Data>[], deps: Deps): Promise<(row: ResourceRow<Data>) => object>;
  /** Judges a request and makes of it what is stored. Default: stores it as it is. Throws GatewayError. */
  check?(
    input: Partial<z.output<z.ZodObject<Shape>>>,
    context: CheckContext<Data, Deps>,
  ): Checked<Data> | Promise<Checked<Data>>;
  /** Throws for a repeated creation whose answer cannot be given again, because part of it was shown only once. */
  refuseReplay?(record: object): void;
  /** Runs in the transaction that deletes a record. Throws GatewayError to refuse. */
  checkRemoval?(row: ResourceRow<Data>, caller: Caller, unit: UnitOfWork): void | Promise<void>;
  /**
   * What every creation, change and deletion locks too, for rules about several records; names like those of streams. A
   * function: those of one workspace.
   */
  locks?: readonly string[] | ((workspaceId: string) => readonly string[]);
  /** What the creation of a record, whose body `input` is, changes of other records, in its transaction. */
  onCreate?: FollowUp<Data, Record<string, unknown>, Deps>;
  /** The same of a deletion. */
  onRemove?: FollowUp<Data, ResourceRow<Data>, Deps>;
  /**
   * `verb`: of the deleting event, when it is not `deleted`. `query`: further members of the query of DELETE, for
   * `onRemove`.
   */
  removal?: { verb?: string; query?: z.ZodRawShape };
  /** Deleted records are archived: lists and GET show them, and them alone, with `status=archived`. */
  isArchived?: boolean;
  /** Further events, by the verb of their type, and what each makes of the fields. Pure. */
  events?: Record<string, (data: Data, event: RecordedEvent<{ type: string; data: never }>) => Data>;
  /** Verbs of events that can begin a stream: of a record that never came about, such as a refused sign-in. */
  neverActive?: readonly string[];
  /** For events whose shape has changed since they were first written. */
  upcasts?: Upcasts;
  /** What a record is found by in all workspaces; unique among the records of the kind, deleted ones too. */
  lookup?(data: Data): string | null;
  /** The public form; never a secret. `nowMs` is the database's clock. Default: id, slug, the fields and the times. */
  view?(row: ResourceRow<Data>, nowMs: number): object;
  /** Documents `view`. */
  viewSchema?: z.ZodObject;
  /**
   * For clients of Portkey that read `{success, data}` from the answer about one record: what `data` has of its public form.
   * It stands beside the members of the record.
   */
  answerData?: (view: Record<string, unknown>) => object;
  /** Members of the answer to GET of one record that are stored elsewhere. `viewSchema` has them as optional. */
  details?(row: ResourceRow<Data>, deps: Deps, query: Record<string, unknown>): Promise<object>;
  /** Members of the query of GET of one record, for `details`. */
  detailsQuery?: z.ZodRawShape;
  /**
   * Members of the query of the list, beside those of paging: the fields that they are compared with as text, or a
   * condition on the rows of `resource`.
   */
  filters?: Record<string, ListFilter>;
  /** The budgets and rates that follow from a record; only of a kind that is cached. */
  limits?(row: ResourceRow<Data>): readonly LimitRule[];
  cached?: CachedKind<Data, Entry>;
  /** Routes beside the usual ones. */
  routes?(store: ResourceStore<Data>, deps: Deps, kit: RouteKit): Route[];
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
