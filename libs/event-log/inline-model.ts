import type { Database } from '#libs/database/schema.ts';
import type { NewEvent, RecordedEvent } from './event.ts';
import { upcast, type Upcasts } from './upcast.ts';

/** The columns that every inline row has. A model adds its own. */
export type StreamRow = {
  id: string;
  workspace_id: string;
  version: number;
  updated_at: Date;
  /** The event that the row was last folded from. */
  last_event_id: string | null;
};

/**
 * A read model written in the append's own transaction. One row folds exactly one stream, so commands are decided on
 * the row.
 */
export type InlineModel<Row extends StreamRow, Event extends NewEvent> = {
  /** The name of the table. Without `nouns`, it is also the noun before the dot of every event type of its streams. */
  name: keyof Database;
  /** The nouns of the event types, when one table holds the rows of several kinds. */
  nouns?: readonly string[];
  /** Whether a record can be deleted, which sets the column `deleted_at`. */
  hasDeletions?: true;
  /** The jsonb columns, which are written as JSON text. */
  jsonColumns: readonly (keyof Row & string)[];
  /** For event types whose shape has changed since they were first written. `evolve` gets current shapes only. */
  upcasts?: Upcasts;
  /**
   * Members of the data of events that `evolve` does not read, by type. A replay does not read them from the database, so
   * that records with thousands of events are replayed quickly.
   */
  unread?: Readonly<Record<string, readonly string[]>>;
  /** Pure and total: uses no clock and no randomness, and accepts every event ever written, in order. */
  evolve(row: Row | undefined, event: RecordedEvent<Event>): Omit<Row, keyof StreamRow>;
  /**
   * Absent: one row per stream. Present: one row for each event of another model's streams for which this returns an
   * id. The command that appends such an event inserts the row, and `evolve` is called without a row.
   */
  perEvent?: {
    /** The noun of these events; without `nouns` that of the model itself. */
    noun?: string;
    rowId: (event: RecordedEvent<Event>) => string | null;
    /** The stream whose event created the row with this id. */
    streamOf: (rowId: string) => string;
  };
};

// `evolve` is contravariant in Event, so collections of models with different events need the widest form.
export type AnyInlineModel = InlineModel<StreamRow & Record<string, unknown>, never>;

/** The upcasts of all these models, for code that reads events of any type. */
export const collectUpcasts = (models: readonly Pick<AnyInlineModel, 'upcasts'>[]): Upcasts =>
  Object.assign({}, ...models.map(({ upcasts }) => upcasts)) as Upcasts;

/**
 * Folds one more event, of any schema version, into a row. Throws when the event is not the next one of its stream: a
 * gap or a repeat means that the order of the log is broken, and the row would be wrong.
 */
export function foldEvent<Row extends StreamRow, Event extends NewEvent>(
  model: InlineModel<Row, Event>,
  row: Row | undefined,
  recorded: RecordedEvent<Event>,
): Row {
  const event = upcast(model.upcasts, recorded);
  const rowId = model.perEvent?.rowId(event);
  if (typeof rowId === 'string') return { ...rowOf(model, undefined, event), id: rowId };
  const expected = (row?.version ?? 0) + 1;
  if (event.streamVersion !== expected) {
    throw new Error(`stream ${event.streamId}: expected version ${expected}, the log has ${event.streamVersion}`);
  }
  return rowOf(model, row, event);
}

function rowOf<Row extends StreamRow, Event extends NewEvent>(
  model: InlineModel<Row, Event>,
  row: Row | undefined,
  event: RecordedEvent<Event>,
): Row {
  return {
    ...model.evolve(row, event),
    id: event.streamId,
    workspace_id: event.workspaceId,
    version: event.streamVersion,
    updated_at: event.recordedAt,
    last_event_id: event.eventId,
  } as Row;
}

/** Returns the nouns of the events that a model folds. */
export const getEventNouns = (model: Pick<AnyInlineModel, 'name' | 'nouns' | 'perEvent'>): readonly string[] =>
  model.nouns ?? [model.perEvent?.noun ?? model.name];

/** Returns a row's values in the order of `columns`, ready for a driver: jsonb as text, everything else unchanged. */
export function rowValues(
  model: Pick<AnyInlineModel, 'jsonColumns'>,
  row: object,
  columns: readonly string[],
): unknown[] {
  const values = row as Record<string, unknown>;
  return columns.map((column) => {
    const value = values[column];
    return value !== null && model.jsonColumns.includes(column) ? JSON.stringify(value) : value;
  });
}
