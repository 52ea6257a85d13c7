/** Who caused an event, in which request and from where; ids only, never a secret. */
export type EventMetadata = {
  actor: { type: 'api_key' | 'system'; id: string };
  request_id?: string;
  trace_id?: string;
  /** The client's IP address. */
  address?: string;
  /** Of the request: its method, and its path without the query. */
  method?: string;
  path?: string;
  causation_id?: string;
  correlation_id?: string;
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
