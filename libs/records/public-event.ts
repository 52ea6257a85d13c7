import type { EventObject } from '#libs/contracts/logs/events.ts';
import { redactSecrets } from '#libs/credentials/configs/config-secrets.ts';
import { canonicalJson } from '#libs/event-log/canonical-json.ts';
import type { ListedEvent } from '#libs/event-log/list-events.ts';

/** An event as clients see it. */
export function toEventObject(event: ListedEvent): EventObject {
  const data = publicData(event.data as Record<string, unknown>);
  return {
    id: event.eventId,
    object: 'event',
    type: event.type,
    stream: event.streamId,
    stream_version: event.streamVersion,
    schema_version: event.schemaVersion,
    workspace_id: event.workspaceId,
    data,
    metadata: event.metadata,
    recorded_at: event.recordedAt.toISOString(),
    sha256: event.sha256,
    data_sha256: event.data_sha256,
    // With the salt, a short secret that is left out could be guessed.
    data_salt: canonicalJson(data) === event.text ? event.data_salt : null,
    metadata_sha256: event.metadata_sha256,
    metadata_salt: event.metadata_salt,
  };
}

/**
 * The data of an event as clients see it. The digest of a key that a person chose could be guessed offline, and a secret
 * of a config is redacted even if it was not recognised as one when it was stored.
 */
export function publicData(whole: Record<string, unknown>): Record<string, unknown> {
  const { digest: _digest, first_digest: _first, ...data } = whole;
  const shown = redactSecrets(data);
  for (const name of ['config', 'target', 'made_with']) {
    const inner = shown[name];
    if (typeof inner === 'object' && inner !== null) shown[name] = publicData(inner as Record<string, unknown>);
  }
  // The previous values of a key.
  if (Array.isArray(shown['previous'])) shown['previous'] = shown['previous'].map(publicData);
  return shown;
}
