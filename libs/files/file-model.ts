import type { Selectable } from 'kysely';
import type { FileTable } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import type { InlineModel, StreamRow } from '#libs/event-log/inline-model.ts';
import { assertNever } from '#libs/kernel/errors.ts';

// These shapes are stored in the event log and must stay readable: a change needs a new schema version with an upcast.
export type FileEvent =
  | {
      type: 'file.uploaded';
      data: {
        purpose: string;
        filename: string;
        bytes: number;
        /** In hex. */
        sha256: string;
        /** The opaque name in the blob store. */
        blob: string;
        /** ISO 8601 with milliseconds; null if it never expires. */
        expires_at: string | null;
      };
    }
  | { type: 'file.deleted'; data: Record<string, never> }
  | { type: 'file.expired'; data: Record<string, never> };

export type FileRow = Selectable<FileTable>;

/** The read model of GET /v1/files. The row of a deleted file remains, because an open batch can still need its blob. */
export const fileModel: InlineModel<FileRow, FileEvent> = { name: 'file', hasDeletions: true, jsonColumns: [], evolve };

function evolve(row: FileRow | undefined, event: RecordedEvent<FileEvent>): Omit<FileRow, keyof StreamRow> {
  switch (event.type) {
    case 'file.uploaded': {
      const { expires_at, ...rest } = event.data;
      const expiresAt = expires_at === null ? null : new Date(expires_at);
      return { ...rest, created_at: event.recordedAt, expires_at: expiresAt, deleted_at: null };
    }
    case 'file.deleted':
    case 'file.expired':
      if (!row) throw new Error(`file ${event.streamId} begins with ${event.type}`);
      return { ...row, deleted_at: event.recordedAt };
    default:
      return assertNever(event);
  }
}
