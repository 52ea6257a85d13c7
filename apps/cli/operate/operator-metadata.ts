import { hostname, userInfo } from 'node:os';
import type { EventMetadata } from '#libs/event-log/event.ts';

/** The metadata of events that a command of an operator appends: the user of the operating system, and the host. */
export const operatorMetadata = (): EventMetadata => ({
  actor: { type: 'system', id: 'cli', user: userName(), host: hostname() },
});

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    // A container can run as a user that has no name.
    return String(process.getuid?.() ?? 'unknown');
  }
}
