import type { EventMetadata } from '#libs/event-log/event.ts';
import type { EventLog } from '#libs/event-log/event-log.ts';
import { organisationId } from '#libs/http/caller.ts';
import { resourceModel } from '#libs/records/resource-model.ts';

/**
 * Requests with wrong keys or tokens within a minute, by reason and by address; `other_addresses`: those from further
 * addresses. Times in ISO 8601.
 */
export type AuthenticationFailures = {
  count: number;
  reasons: Record<string, number>;
  addresses: { address: string; count: number }[];
  other_addresses: number;
  first_at: string;
  last_at: string;
};

/** A process has started. A setting that can contain a secret is only `set`. */
export type ProcessStarted = {
  /** `api` or `worker`. */
  process: string;
  release: string;
  node_version: string;
  pid: number;
  /** Whether `npm start` started it. */
  is_standalone: boolean;
  settings: Record<string, string | number | boolean>;
};

/** Data was deleted because of its age. `before`: that age as a time, in ISO 8601. */
export type DataDeleted = { kind: string; unit: string; count: number; before: string };

/** Events of the installation as a whole. They belong to no record; their stream is the ID of the organisation. */
export type OrganisationEvent =
  /** An operator's command that opens the database itself has changed something. */
  | { type: 'organisation.command_run'; data: { command: string; result: Record<string, unknown> } }
  | { type: 'organisation.request_refused'; data: AuthenticationFailures }
  | { type: 'organisation.process_started'; data: ProcessStarted }
  /** Of workspaces that are not known; otherwise it is `workspace.data_deleted`. */
  | { type: 'organisation.data_deleted'; data: DataDeleted };

type Verb<Type extends string> = Type extends `organisation.${infer Name}` ? Name : never;
const unchanged = (data: object): object => data;
const events: Record<Verb<OrganisationEvent['type']>, typeof unchanged> = {
  command_run: unchanged,
  request_refused: unchanged,
  process_started: unchanged,
  data_deleted: unchanged,
};

/** How these events are folded: the organisation has no fields. */
export const organisationKind = {
  noun: 'organisation',
  removal: false,
  history: { events, neverActive: Object.keys(events) },
} as const;

const organisationModel = resourceModel([organisationKind]);

/** Appends an event of the organisation. */
export async function recordForOrganisation(
  eventLog: Pick<EventLog, 'transact'>,
  event: OrganisationEvent,
  metadata: EventMetadata,
): Promise<void> {
  const command = { workspaceId: organisationId, streams: [organisationId], metadata };
  await eventLog.transact(command, (unit) => unit.append(organisationModel, organisationId, [event]));
}
