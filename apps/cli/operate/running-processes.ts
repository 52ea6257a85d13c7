import type { Kysely } from 'kysely';
import { listConnectedSessions, type ConnectedSession } from '#libs/database/connected-processes.ts';
import type { Database } from '#libs/database/schema.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';

/** A starting process waits in one of these sessions and has not read any data yet. */
const startingApplications: ReadonlySet<string> = new Set(['sluice-start', 'sluice-migrate']);

/** The sessions of running processes, except the command with this application name. */
export const listRunning = async (db: Kysely<Database>, applicationName: string): Promise<ConnectedSession[]> =>
  (await listConnectedSessions(db, applicationName)).filter(
    ({ application }) => !startingApplications.has(application),
  );

/** Throws ConfigurationError while processes of Sluice are connected, and lists them. */
export async function assertAlone(db: Kysely<Database>, applicationName: string): Promise<void> {
  const running = await listRunning(db, applicationName);
  if (running.length === 0) return;
  const lines = describeSessions(running).map((line) => `  ${line}`);
  throw new ConfigurationError(
    `Stop all processes of Sluice first. These are connected to the database:\n${lines.join('\n')}`,
  );
}

/** One line for each application and address. */
export function describeSessions(sessions: readonly ConnectedSession[]): string[] {
  const groups = Map.groupBy(sessions, ({ application, address }) => `${application} from ${address ?? 'this host'}`);
  return [...groups].map(([name, members]) => {
    const pids = members.map(({ pid }) => pid).join(', ');
    return `${name}, since ${members[0]?.since.toISOString()} (backend ${pids})`;
  });
}
