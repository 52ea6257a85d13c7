import type { Selectable } from 'kysely';
import type { WorkspaceTable } from '#libs/database/schema.ts';
import type { RecordedEvent } from '#libs/event-log/event.ts';
import type { InlineModel, StreamRow } from '#libs/event-log/inline-model.ts';
import { assertNever } from '#libs/kernel/errors.ts';

/** As their author wrote them, without their secrets (config-secrets.ts). */
export type GuardrailDocument = { input_guardrails: object[]; output_guardrails: object[] };

// Written to the log: promises. A change of shape is a new schema version with an upcaster.
export type WorkspaceEvent =
  | { type: 'workspace.created'; data: { name: string } }
  /** The whole new lists; empty ones for none. */
  | { type: 'workspace.guardrails_set'; data: GuardrailDocument };

export type WorkspaceRow = Selectable<WorkspaceTable>;

/** Workspaces; the stream's id is also the workspace that it belongs to. */
export const workspaceModel: InlineModel<WorkspaceRow, WorkspaceEvent> = {
  name: 'workspace',
  jsonColumns: ['guardrails'],
  evolve,
};

function evolve(
  row: WorkspaceRow | undefined,
  event: RecordedEvent<WorkspaceEvent>,
): Omit<WorkspaceRow, keyof StreamRow> {
  if (event.type === 'workspace.created') {
    return { name: event.data.name, created_at: event.recordedAt, guardrails: null };
  }
  if (!row) throw new Error(`workspace ${event.streamId} begins with ${event.type}`);
  switch (event.type) {
    case 'workspace.guardrails_set': {
      const { input_guardrails: input, output_guardrails: output } = event.data;
      const isNone = input.length === 0 && output.length === 0;
      return { ...row, guardrails: isNone ? null : event.data };
    }
    default:
      return assertNever(event);
  }
}
