import { hostname, userInfo } from 'node:os';
import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import type { EventMetadata } from '#libs/event-log/event.ts';
import { raiseEpochAfterRestore } from '#libs/event-log/epoch.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { recordForOrganisation } from '#libs/people/facts/organisation-events.ts';

/** The metadata of events that a command of an operator appends: the user of the operating system, and the host. */
export const operatorMetadata = (): EventMetadata => ({
  actor: { type: 'system', id: 'cli', user: userName(), host: hostname() },
});

/** Records that a command changed something, for changes that belong to no record. */
export async function recordCommand(
  db: Kysely<Database>,
  command: string,
  result: Record<string, unknown>,
): Promise<void> {
  await raiseEpochAfterRestore(db); // this command can be the first to run after a restore
  const event = { type: 'organisation.command_run' as const, data: { command, result } };
  await recordForOrganisation(createEventLog(db), event, operatorMetadata());
}

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    // A container can run as a user that has no name.
    return String(process.getuid?.() ?? 'unknown');
  }
}
