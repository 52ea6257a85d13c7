import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import type { FileEvent } from '#libs/files/file-model.ts';
import type { FineTuningEvent } from '#libs/fine-tuning/fine-tuning-job.ts';
import type { OrganisationEvent } from '#libs/people/facts/organisation-events.ts';
import type { RequestLogEvent } from '#libs/request-log/seal/sealed-calls.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { eventTypesOf } from '#libs/records/resource-model.ts';

/**
 * The types that no kind of record declares. A new type causes a compile error until it is listed here, and then fails
 * the test of the golden log until that contains it too.
 */
const otherTypes: Record<
  (BatchEvent | FileEvent | FineTuningEvent | OrganisationEvent | RequestLogEvent)['type'],
  true
> = {
  'batch.cancel_requested': true,
  'batch.cancelled': true,
  'batch.chunk_redelivered': true,
  'batch.completed': true,
  'batch.created': true,
  'batch.expired': true,
  'batch.failed': true,
  'batch.finalizing': true,
  'batch.lines_settled': true,
  'batch.paused': true,
  'batch.resumed': true,
  'batch.validated': true,
  'file.deleted': true,
  'file.expired': true,
  'file.uploaded': true,
  'fine_tuning_job.cancel_requested': true,
  'fine_tuning_job.checkpoint_recorded': true,
  'fine_tuning_job.created': true,
  'fine_tuning_job.event_recorded': true,
  'fine_tuning_job.files_uploaded': true,
  'fine_tuning_job.pause_requested': true,
  'fine_tuning_job.provider_accepted': true,
  'fine_tuning_job.request_answered': true,
  'fine_tuning_job.resume_requested': true,
  'fine_tuning_job.status_changed': true,
  'organisation.command_run': true,
  'organisation.data_deleted': true,
  'organisation.process_started': true,
  'organisation.request_refused': true,
  'request_log.calls_sealed': true,
};

/**
 * Every type of event that this release writes.
 * @testOnly
 */
export const eventTypes: readonly string[] = [...Object.keys(otherTypes), ...resourceKinds.flatMap(eventTypesOf)];

const types = eventTypes.map((type) => type.split('.'));

/** The nouns of all events, as used in the audit log. */
export const resourceTypes = [...new Set(types.map(([noun = '']) => noun))].toSorted();

/** Their verbs. */
export const actions = [...new Set(types.map(([, verb = '']) => verb))].toSorted();
