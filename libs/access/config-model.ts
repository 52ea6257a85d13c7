import type { Selectable } from 'kysely';
import type { ConfigTable, ConfigVersionTable } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import type { InlineModel, StreamRow } from '#libs/event-log/inline-model.ts';
import { assertNever } from '#libs/kernel/errors.ts';

/** The config as its author wrote it, without any credential (those are virtual keys). */
type ConfigDocument = Record<string, unknown>;

// Written to the log: promises. A change of shape is a new schema version with an upcaster.
export type ConfigEvent =
  | {
      type: 'config.created';
      data: { slug: string; name: string; config: ConfigDocument; config_version: number };
    }
  /** Only what changed. A new config comes with its version, the next after the last. */
  | { type: 'config.updated'; data: { name?: string; config?: ConfigDocument; config_version?: number } }
  | { type: 'config.deleted'; data: Record<string, never> };

export type ConfigRow = Selectable<ConfigTable>;
export type ConfigVersionRow = Selectable<ConfigVersionTable>;

/** The read model of GET /v1/configs: the newest version. A deleted config keeps its row, and its versions theirs. */
export const configModel: InlineModel<ConfigRow, ConfigEvent> = { name: 'config', jsonColumns: ['config'], evolve };

function evolve(row: ConfigRow | undefined, event: RecordedEvent<ConfigEvent>): Omit<ConfigRow, keyof StreamRow> {
  if (event.type === 'config.created') return { ...event.data, created_at: event.recordedAt, deleted_at: null };
  if (!row) throw new Error(`config ${event.streamId} begins with ${event.type}`);
  switch (event.type) {
    case 'config.updated':
      return { ...row, ...event.data };
    case 'config.deleted':
      return { ...row, deleted_at: event.recordedAt };
    default:
      return assertNever(event);
  }
}

/** The id of a version's row. */
export const configVersionId = (configId: string, version: number): string => `${configId}@${version}`;

/** The read model of GET /v1/configs/{slug}/versions: one row for each event that brought a config, for good. */
export const configVersionModel: InlineModel<ConfigVersionRow, ConfigEvent> = {
  name: 'config_version',
  jsonColumns: ['config'],
  perEvent: {
    noun: 'config',
    rowId: ({ streamId, data }) =>
      'config_version' in data && data.config_version !== undefined
        ? configVersionId(streamId, data.config_version)
        : null,
    streamOf: (rowId) => rowId.slice(0, rowId.lastIndexOf('@')),
  },
  evolve: (_row, event) => {
    if (event.type === 'config.deleted') throw new Error('a deletion brings no version');
    const { config, config_version: version } = event.data;
    if (config === undefined || version === undefined) throw new Error(`event of ${event.streamId} brings no version`);
    return {
      config_id: event.streamId,
      config_version: version,
      config,
      created_at: event.recordedAt,
    };
  },
};
