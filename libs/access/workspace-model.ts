import type { Selectable } from 'kysely';
import type { WorkspaceTable } from '#libs/database/schema.ts';
import type { InlineModel } from '#libs/event-log/inline-model.ts';

// Written to the log: promises. A change of shape is a new schema version with an upcaster.
export type WorkspaceEvent = { type: 'workspace.created'; data: { name: string } };

export type WorkspaceRow = Selectable<WorkspaceTable>;

/** Workspaces; the stream's id is also the workspace that it belongs to. */
export const workspaceModel: InlineModel<WorkspaceRow, WorkspaceEvent> = {
  name: 'workspace',
  jsonColumns: [],
  evolve: (_row, event) => ({ name: event.data.name, created_at: event.recordedAt }),
};
