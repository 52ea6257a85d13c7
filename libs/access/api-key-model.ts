import type { Selectable } from 'kysely';
import type { ApiKeyDefaults, ApiKeyTable } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import type { InlineModel, StreamRow } from '#libs/event-log/inline-model.ts';
import { assertNever } from '#libs/kernel/errors.ts';

/** What the log may know of a gateway key: enough to recognise it and to tell it apart, not to use it. */
type KeyFingerprint = {
  /** SHA-256 of the key, hex. */
  digest: string;
  last_four: string;
};

// Written to the log: promises. A change of shape is a new schema version with an upcaster.
export type ApiKeyEvent =
  | {
      type: 'api_key.created';
      data: KeyFingerprint & {
        name: string;
        /** `<area>.<read|write>`; null for all, also those of later versions. */
        scopes: string[] | null;
        defaults: ApiKeyDefaults;
        /** ISO 8601 with milliseconds, null for never. */
        expires_at: string | null;
      };
    }
  | { type: 'api_key.rotated'; data: KeyFingerprint }
  | { type: 'api_key.revoked'; data: Record<string, never> }
  /** Requests of the key that were refused for one reason within a minute (refusal-log.ts); times in ISO 8601. */
  | {
      type: 'api_key.request_refused';
      data: {
        method: string;
        route: string;
        code: string;
        message: string;
        count: number;
        addresses: string[];
        first_at: string;
        last_at: string;
      };
    };

export type ApiKeyRow = Selectable<ApiKeyTable>;

/** The read model of GET /v1/api-keys, and what every process's access snapshot is made of. */
export const apiKeyModel: InlineModel<ApiKeyRow, ApiKeyEvent> = {
  name: 'api_key',
  jsonColumns: ['scopes', 'defaults'],
  evolve,
};

function evolve(row: ApiKeyRow | undefined, event: RecordedEvent<ApiKeyEvent>): Omit<ApiKeyRow, keyof StreamRow> {
  if (event.type === 'api_key.created') {
    const { name, digest, last_four, scopes, defaults, expires_at } = event.data;
    const expiresAt = expires_at === null ? null : new Date(expires_at);
    const createdAt = event.recordedAt;
    return {
      name,
      digest,
      last_four,
      scopes,
      defaults,
      created_at: createdAt,
      expires_at: expiresAt,
      revoked_at: null,
    };
  }
  if (!row) throw new Error(`api key ${event.streamId} begins with ${event.type}`);
  switch (event.type) {
    case 'api_key.rotated':
      return { ...row, digest: event.data.digest, last_four: event.data.last_four };
    case 'api_key.revoked':
      return { ...row, revoked_at: event.recordedAt };
    case 'api_key.request_refused':
      return row;
    default:
      return assertNever(event);
  }
}
