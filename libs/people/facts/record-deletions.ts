import type { EventLog } from '#libs/event-log/event-log.ts';
import { workspaceModel } from '../workspaces.ts';
import { recordForOrganisation, type DataDeleted } from './organisation-events.ts';

/** What was deleted because of its age. `workspaces`: how much of which; `unknown`: how much of workspaces that are not known. */
export type Deletion = Omit<DataDeleted, 'count'> & { workspaces?: ReadonlyMap<string, number>; unknown?: number };

/** The deletions of further workspaces are one event of the organisation. */
const workspacesMax = 100;

const metadata = { actor: { type: 'system' as const, id: 'retention' } };

/** Appends an event for each workspace, and one for the rest to the organisation. Appends none if nothing was deleted. */
export async function recordDeletion(
  eventLog: Pick<EventLog, 'transact'>,
  { workspaces = new Map(), unknown = 0, ...what }: Deletion,
): Promise<void> {
  let rest = unknown;
  let recorded = 0;
  for (const [workspaceId, count] of workspaces) {
    if (recorded < workspacesMax && (await recordOfWorkspace(eventLog, workspaceId, { ...what, count }))) recorded += 1;
    else rest += count;
  }
  if (rest === 0) return;
  await recordForOrganisation(
    eventLog,
    { type: 'organisation.data_deleted', data: { ...what, count: rest } },
    metadata,
  );
}

/** Returns false if the workspace does not exist. */
async function recordOfWorkspace(
  eventLog: Pick<EventLog, 'transact'>,
  workspaceId: string,
  data: DataDeleted,
): Promise<boolean> {
  return await eventLog.transact({ workspaceId, streams: [workspaceId], metadata }, async (unit) => {
    if ((await unit.load(workspaceModel, workspaceId)) === undefined) return false;
    await unit.append(workspaceModel, workspaceId, [{ type: 'workspace.data_deleted', data }]);
    return true;
  });
}
