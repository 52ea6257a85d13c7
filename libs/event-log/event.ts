/** Who caused an event, in which request and from where; ids only, never a secret. */
export type EventMetadata = {
  actor: EventActor;
  request_id?: string;
  trace_id?: string;
  /** The client's IP address, as far as trusted proxies tell it. */
  address?: string;
  /** Of the request: its method, and its path without the query. */
  method?: string;
  path?: string;
  causation_id?: string;
  correlation_id?: string;
};

/** A key, or the part of the system with this id. What follows `id` is absent for the system, and in older events. */
export type EventActor = {
  type: 'api_key' | 'system';
  id: string;
  /** Who acted with the key. */
  principal?: { type: 'user' | 'service_key' | 'organisation_key'; id: string; role: string | null };
  /** The key's own, which may be another than the event's. */
  workspace_id?: string;
  /** What the key might do then; null for everything. */
  scopes?: readonly string[] | null;
};

/** An event before it is written: `type` is `noun.verb_ed`, never renamed or reshaped once merged. */
export type NewEvent = { type: string; data: object };

/** An event as the log holds it. `recordedAt` is the database's clock in whole milliseconds. */
export type RecordedEvent<Event extends NewEvent = NewEvent> = Event & {
  eventId: string;
  workspaceId: string;
  streamId: string;
  streamVersion: number;
  schemaVersion: number;
  recordedAt: Date;
};
