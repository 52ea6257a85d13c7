import type { StreamRow } from '#libs/event-log/inline-model.ts';

/** The principals that created a record and last changed it, by ID. */
export type Authors = { created_by?: string; updated_by?: string };

/** The current state of a record. `Data` is in its JSON form: times are ISO 8601 strings. `data` also contains `Authors`. */
export type ResourceRow<Data = Record<string, unknown>> = StreamRow & {
  kind: string;
  slug: string | null;
  lookup: string | null;
  data: Data;
  last_version: number | null;
  created_at: Date;
  deleted_at: Date | null;
};

/** A version of a record. It never changes. */
export type ResourceVersionRow<Data = Record<string, unknown>> = StreamRow & {
  kind: string;
  resource_id: string;
  number: number;
  data: Partial<Data>;
  created_at: Date;
};

/**
 * `<noun>.created` has all fields and the slug; `.updated` the changed ones; `.deleted` (or the kind's own verb) none. A new
 * version adds its number as `<noun>_version`. `.version_published` repeats the fields of the version that it names, so that
 * a row can be computed from the event alone.
 */
export type ResourceEvent = { type: string; data: Record<string, unknown> };

/** A page of a list: the items after the item with the ID `after`, or after the first `skip` items. */
export type PageRequest = {
  /** null: the records of all workspaces. */
  workspaceId: string | null;
  after: string | null;
  skip: number;
  limit: number;
  /** The maximum size of all records on the page together. Default: 4 MiB. */
  bytesMax?: number;
  /** Keyed by the names of the kind's `filters`. */
  filters?: Readonly<Record<string, unknown>>;
};

/** Counting stops here. Otherwise a list with a million records would read all of them for each page. */
export const totalMax = 10_000;

/**
 * Up to `limit + 1` records. The extra one only shows that there are more. `total` is exact up to 10,000, the highest value.
 * `isCut`: the page ended early because it reached its limit in bytes.
 */
export type ResourcePage<Row> = { rows: Row[]; total: number; bytes: number; isCut: boolean };

/** Returns the value in the form that it has in an event: no undefined members, and times as text. */
export const asJson = <Value>(value: Value): Value => JSON.parse(JSON.stringify(value)) as Value;
