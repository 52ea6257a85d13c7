import type { EventMetadata, RecordedEvent } from './event.ts';

/**
 * The text of an event that its hash is taken of, and that a seal of the log covers: the canonical JSON (RFC 8785) of
 * exactly these members. `form` names this choice of members: another choice has another number, and both stay readable.
 * The event's place in the order of the log is not in it, because a restored log has another one.
 *
 * The same text comes of an event as it is appended and as it is read: jsonb changes the order of members, white space
 * and the notation of numbers, none of which canonical JSON keeps. So events from before this text was stored can be
 * given theirs when they are read. Throws TypeError for data that is no JSON.
 */
export function canonicalForm(event: RecordedEvent, metadata: EventMetadata): string {
  return canonicalJson({
    form: 1,
    event_id: event.eventId,
    workspace_id: event.workspaceId,
    stream_id: event.streamId,
    stream_version: event.streamVersion,
    type: event.type,
    schema_version: event.schemaVersion,
    data: event.data,
    metadata,
    recorded_at: event.recordedAt.toISOString(),
  });
}

/**
 * A value in the JSON Canonicalization Scheme (RFC 8785): members sorted by UTF-16 code units, no white space, numbers
 * and strings as ECMAScript writes them. Members that are undefined are left out and values with `toJSON` are replaced
 * by what it returns, as in JSON.stringify. Throws TypeError for what JSON cannot hold exactly: a number that is not
 * finite, half a surrogate pair, a bigint, a function.
 */
export function canonicalJson(value: unknown): string {
  if (typeof value === 'string') return canonicalText(value);
  if (typeof value === 'object') return value === null ? 'null' : canonicalObject(value);
  if (typeof value === 'boolean' || (typeof value === 'number' && Number.isFinite(value))) return String(value);
  const what = typeof value === 'number' ? `the number ${value}` : `a value of type ${typeof value}`;
  throw new TypeError(`${what} has no canonical form`);
}

function canonicalObject(value: object): string {
  if ('toJSON' in value && typeof value.toJSON === 'function') return canonicalJson(value.toJSON());
  if (Array.isArray(value)) return `[${value.map((item: unknown) => canonicalJson(item ?? null)).join(',')}]`;
  const members = value as Record<string, unknown>;
  let text = '';
  // The default order of sort is the one that RFC 8785 asks for.
  for (const name of Object.keys(members).sort()) {
    const member = members[name];
    if (member !== undefined) text += `${text === '' ? '' : ','}${canonicalText(name)}:${canonicalJson(member)}`;
  }
  return `{${text}}`;
}

function canonicalText(text: string): string {
  // Most texts need no escape, and JSON.stringify is what costs most of all here.
  if (/^[ !#-[\]-~]*$/.test(text)) return `"${text}"`;
  if (!text.isWellFormed()) throw new TypeError('a text with half a surrogate pair has no canonical form');
  return JSON.stringify(text);
}
