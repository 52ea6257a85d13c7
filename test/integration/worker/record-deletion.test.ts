import { expect, test } from 'vitest';
import { inlineModels } from '#apps/platform/models.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { recordDeletion } from '#libs/people/facts/record-deletions.ts';
import { workspaceModel } from '#libs/people/workspaces.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();

test('what retention deleted is an event of each workspace, and one of the organisation for the rest', async () => {
  const { db, pool } = database;
  const eventLog = createEventLog(db);
  const metadata = { actor: { type: 'system' as const, id: 'test' } };
  await eventLog.transact({ workspaceId: 'ws_1', streams: ['ws_1'], metadata }, (unit) =>
    unit.append(workspaceModel, 'ws_1', [{ type: 'workspace.created', data: { name: 'One' } }]),
  );
  const what = { kind: 'recorded_bodies', unit: 'calls', before: '2026-11-28T00:00:00.000Z' };
  await recordDeletion(eventLog, { ...what, workspaces: new Map() });
  await recordDeletion(eventLog, { ...what, unknown: 0 });
  const counts = new Map([
    ['ws_1', 3],
    ['ws_unknown', 4],
  ]);
  await recordDeletion(eventLog, { ...what, workspaces: counts, unknown: 5 });
  const { rows } = await pool.query(
    "select type, workspace_id, data from event where type like '%.data_deleted' order by position",
  );
  expect(rows).toEqual([
    { type: 'workspace.data_deleted', workspace_id: 'ws_1', data: { ...what, count: 3 } },
    { type: 'organisation.data_deleted', workspace_id: 'org_default', data: { ...what, count: 9 } },
  ]);
  expect((await checkInlineModels(pool, inlineModels)).difference).toBeNull();
});
