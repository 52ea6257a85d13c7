import type { StreamRow } from '#libs/event-log/inline-model.ts';

/** Who made a record and who changed it last: ids of principals. */
export type Authors = { created_by?: string; updated_by?: string };

/**
 * The newest state of a record. `Data` is as JSON has it: times are ISO 8601 texts. Beside its members, `data` has `Authors`.
 */
export type ResourceRow<Data = Record<string, unknown>> = StreamRow & {
  kind: string;
  slug: string | null;
  lookup: string | null;
  data: Data;
  last_version: number | null;
  created_at: Date;
  deleted_at: Date | null;
};

/** A version of a record, as it was and will be. */
export type ResourceVersionRow<Data = Record<string, unknown>> = StreamRow & {
  kind: string;
  resource_id: string;
  number: number;
  data: Partial<Data>;
  created_at: Date;
};

/**
 * `<noun>.created` has all fields and the slug; `.updated` the changed ones; `.deleted` (or the kind's own
 * verb) nothing.
 * A new version comes with its number as `<noun>_version`; `.version_published` repeats the fields of the one that it
 * names, so that a row is made of the event alone.
 */
export type ResourceEvent = { type: string; data: Record<string, unknown> };

/** A page of a list: after the item with the id `after`, or after the first `skip` ones. */
export type PageRequest = {
  /** null: of all workspaces. */
  workspaceId: string | null;
  after: string | null;
  skip: number;
  limit: number;
  /** The most that the records of the page have together. Default 4 MiB. */
  bytesMax?: number;
  /** By the names of the kind's `filters`. */
  filters?: Readonly<Record<string, unknown>>;
};

/** Where counting ends: a list with a million records would otherwise read them all for each page. */
export const totalMax = 10_000;

/**
 * Up to `limit + 1` records. The extra one only shows that there are more. `total` is exact up to 10,000, the highest value.
 * `isCut`: the page ended early because it reached its limit in bytes.
 */
export type ResourcePage<Row> = { rows: Row[]; total: number; bytes: number; isCut: boolean };

/** As an event gives it back: no undefined members, times as text. */
export const asJson = <Value>(value: Value): Value => JSON.parse(JSON.stringify(value)) as Value;
