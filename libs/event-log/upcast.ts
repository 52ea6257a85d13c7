import type { RecordedEvent } from './event.ts';

/**
 * For each event type, the functions that convert older schema versions: the first converts version 1 to 2, the second
 * 2 to 3, and so on. The current version of a type is therefore the number of its functions plus one, and 1 for a type
 * without functions. The functions are pure and are never removed, because the log retains every version.
 */
export type Upcasts = Readonly<Record<string, readonly ((data: never) => object)[]>>;

/** Returns the schema version in which events of a type are written. */
export const currentVersion = (upcasts: Upcasts | undefined, type: string): number =>
  1 + (upcasts?.[type]?.length ?? 0);

/**
 * Returns the event with its data in the current schema version. Throws when a newer release wrote it, because this
 * release does not know what its data means.
 */
export function upcast<Event extends RecordedEvent>(upcasts: Upcasts | undefined, event: Event): Event {
  const current = currentVersion(upcasts, event.type);
  if (event.schemaVersion === current) return event;
  if (event.schemaVersion > current) {
    throw new Error(
      `event ${event.eventId} has version ${event.schemaVersion} of ${event.type}, this release knows up to ${current}`,
    );
  }
  const steps = upcasts?.[event.type]?.slice(event.schemaVersion - 1) ?? [];
  const data = steps.reduce<object>((older, step) => step(older as never), event.data);
  return { ...event, data, schemaVersion: current };
}
