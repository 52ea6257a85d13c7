import { hash } from 'node:crypto';
import { canonicalJson } from '#libs/event-log/canonical-json.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';

/** The SHA-256 digests of the data and the metadata of an event, each with its own salt, in hexadecimal. */
type EventDigests = { dataSha256: string; metadataSha256: string };

/**
 * Returns the text that the SHA-256 of an event covers, as the function event_envelope() in the database does: canonical
 * JSON (RFC 8785) of exactly these members. Another set of members gets another `form`.
 */
export const toEnvelope = (event: Omit<RecordedEvent, 'data'>, { dataSha256, metadataSha256 }: EventDigests): string =>
  canonicalJson({
    form: 2,
    event_id: event.eventId,
    workspace_id: event.workspaceId,
    stream_id: event.streamId,
    stream_version: event.streamVersion,
    type: event.type,
    schema_version: event.schemaVersion,
    data_sha256: dataSha256,
    metadata_sha256: metadataSha256,
    recorded_at: event.recordedAt.toISOString(),
  });

/**
 * Returns the SHA-256 of a salt, in hexadecimal, followed by the canonical JSON of a value.
 */
export const saltedSha256 = (salt: string, value: object): string =>
  hash('sha256', Buffer.concat([Buffer.from(salt, 'hex'), Buffer.from(canonicalJson(value))]));
