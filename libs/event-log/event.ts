/** The cause of an event, its request and its origin. Contains only IDs and never a secret. */
export type EventMetadata = {
  actor: EventActor;
  request_id?: string;
  trace_id?: string;
  /** The client's IP address, as reported by trusted proxies. */
  address?: string;
  /** The method of the request, and its path without the query. */
  method?: string;
  path?: string;
  /** The ID of the event that caused this one. */
  causation_id?: string;
  /** The ID of the record whose work this event belongs to, such as a batch. */
  correlation_id?: string;
};

/**
 * A key, a user who signed in without a key, or the part of the system with this id. The members after `id` are absent
 * for the system.
 */
export type EventActor = {
  type: 'api_key' | 'user' | 'system';
  id: string;
  /** The principal that acted: the owner of the key, or the user who signed in. */
  principal?: {
    type: 'user' | 'service_key' | 'organisation_key';
    id: string;
    role: string | null;
    /** The role of the user in the organisation. */
    organisation_role?: string;
  };
  /** The workspace of the key, which can differ from that of the event. */
  workspace_id?: string;
  /** The scopes of the key at that time; null for all of them. */
  scopes?: readonly string[] | null;
  /** Of an operator's command: the user of the operating system, and the host. */
  user?: string;
  host?: string;
};

/** An event before it is written: `type` is `noun.verb_ed`, never renamed or reshaped once merged. */
export type NewEvent = { type: string; data: object };

/** An event as it is stored in the log. `recordedAt` is the database's clock in whole milliseconds. */
export type RecordedEvent<Event extends NewEvent = NewEvent> = Event & {
  eventId: string;
  workspaceId: string;
  streamId: string;
  streamVersion: number;
  schemaVersion: number;
  recordedAt: Date;
};
