import type { RecordedEvent } from './event.ts';

/**
 * How the data of older schema versions become those of the current one, by event type: the first function takes
 * version 1 to 2, the second 2 to 3, and so on. The current version of a type is therefore one more than it has
 * functions, and 1 for a type that is not named. They are pure and stay for good, because the log keeps every version.
 */
export type Upcasts = Readonly<Record<string, readonly ((data: never) => object)[]>>;

/** The schema version that events of a type are written with. */
export const currentVersion = (upcasts: Upcasts | undefined, type: string): number =>
  1 + (upcasts?.[type]?.length ?? 0);

/**
 * The event with its data in the current schema version. Throws when a newer release wrote it: its data may mean
 * something that this release does not know.
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
