import type { Selectable } from 'kysely';
import type { VirtualKeyTable } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import type { InlineModel, StreamRow } from '#libs/event-log/inline-model.ts';
import { assertNever } from '#libs/kernel/errors.ts';

/** What may change in the life of a virtual key. The credential itself is a row of `secret`, never in an event. */
export type VirtualKeyFields = {
  name: string;
  /** Canonical (custom-host.ts); null for the provider's own address. */
  custom_host: string | null;
  note: string | null;
  /** The provider's settings that are no secrets. */
  settings: Record<string, string>;
  /** null for a server that asks for no credential. */
  secret_id: string | null;
  secret_last_four: string;
  /** ISO 8601 with milliseconds, null for never. */
  expires_at: string | null;
};

// Written to the log: promises. A change of shape is a new schema version with an upcaster.
export type VirtualKeyEvent =
  | { type: 'virtual_key.created'; data: { slug: string; provider: string } & VirtualKeyFields }
  /** Only what changed; each member has its whole new value. */
  | { type: 'virtual_key.updated'; data: Partial<VirtualKeyFields> }
  | { type: 'virtual_key.deleted'; data: Record<string, never> };

export type VirtualKeyRow = Selectable<VirtualKeyTable>;
type Columns = Omit<VirtualKeyRow, keyof StreamRow>;

/** The read model of GET /v1/virtual-keys. A deleted key keeps its row, so that a batch can be told what happened. */
export const virtualKeyModel: InlineModel<VirtualKeyRow, VirtualKeyEvent> = {
  name: 'virtual_key',
  jsonColumns: ['settings'],
  evolve,
};

function evolve(row: VirtualKeyRow | undefined, event: RecordedEvent<VirtualKeyEvent>): Columns {
  if (event.type === 'virtual_key.created') {
    const { expires_at, ...rest } = event.data;
    return { ...rest, created_at: event.recordedAt, expires_at: toDate(expires_at), deleted_at: null };
  }
  if (!row) throw new Error(`virtual key ${event.streamId} begins with ${event.type}`);
  switch (event.type) {
    case 'virtual_key.updated': {
      const { expires_at, ...rest } = event.data;
      return { ...row, ...rest, expires_at: expires_at === undefined ? row.expires_at : toDate(expires_at) };
    }
    case 'virtual_key.deleted':
      // Its ciphertext went with it.
      return { ...row, secret_id: null, deleted_at: event.recordedAt };
    default:
      return assertNever(event);
  }
}

const toDate = (text: string | null): Date | null => (text === null ? null : new Date(text));
