import { sql } from 'kysely';
import { SiemDestinationObject, siemDestinationFields } from '#libs/contracts/siem-destinations.ts';
import { findEvent } from '#libs/event-log/list-events.ts';
import { organisationId } from '#libs/http/caller.ts';
import { defineKind } from '#libs/resources/define-kind.ts';
import { checkDestination, type SiemDestinationData } from './siem-destination-data.ts';
import { readProgress } from './siem-progress.ts';

/** The maximum number of destinations in a workspace, and of the organisation. */
const destinationsMax = 5;

/** A system that events are pushed to (libs/siem), beginning with the one that created it. */
export const siemDestinationKind = defineKind<typeof siemDestinationFields, SiemDestinationData>({
  noun: 'siem_destination',
  idPrefix: 'siem_',
  area: 'audit',
  texts: {
    create: {
      description:
        'Pushes the events of the log from now on. A destination of a workspace gets the events of that workspace. One of ' +
        'the organisation gets all events.',
      example: {
        name: 'Splunk',
        type: 'splunk_hec',
        url: 'https://splunk.example.com:8088',
        token: 'your-hec-token',
        format: 'ocsf',
      },
      errors: { destination_not_allowed: 'the address of `url` is private or reserved' },
    },
    update: {
      description: 'Applies to the next attempt. To change the server, send the token again.',
      example: { events: 'audit' },
      errors: { destination_not_allowed: 'the address of `url` is private or reserved' },
    },
    delete: { description: 'Events that were not sent yet are not sent any more. They stay in the log.' },
  },
  path: '/v1/siem-destinations',
  names: {
    one: 'SIEM destination',
    many: 'SIEM destinations',
    tag: 'SIEM destinations',
    about: 'Systems that the events of the log are pushed to.',
  },
  shared: { isDefault: true, isHidden: true },
  fields: siemDestinationFields,
  applied: { refersTo: {}, secrets: /^token$/, areCredentials: true },
  changes: { immutable: ['type'] },
  creation: {
    limit: () => ({ max: destinationsMax }),
    also: {
      streams: () => [],
      async run({ tx }, _input, { row }) {
        const created = await findEvent(tx, row.workspace_id, row.last_event_id ?? '');
        await sql`
          insert into siem_cursor (destination_id, workspace_id, epoch, transaction_id, position)
          values (${row.id}, ${row.workspace_id}, ${created.epoch}, ${created.transactionId}::xid8, ${created.position - 1})`.execute(
          tx,
        );
      },
    },
  },
  removal: {
    also: {
      streams: () => [],
      async run({ tx }, { id }) {
        await tx.deleteFrom('siem_cursor').where('destination_id', '=', id).execute();
      },
    },
  },

  check: (input, context) => checkDestination(input, context),

  view: ({ workspace_id, data }) => ({
    workspace_id: workspace_id === organisationId ? null : workspace_id,
    name: data.name,
    type: data.type,
    url: data.url ?? null,
    format: data.format,
    events: data.events,
    calls: data.calls,
    has_token: (data.secret_id ?? null) !== null,
    ca: data.ca ?? null,
    enabled: data.enabled,
    lag_seconds: 0,
    last_sent_at: null,
    failures: 0,
    last_error: null,
    dropped_records: 0,
    next_attempt_at: null,
    created_by: data.created_by ?? null,
  }),
  viewSchema: SiemDestinationObject,
  related: (rows, { db }) => readProgress(db, rows),
});
