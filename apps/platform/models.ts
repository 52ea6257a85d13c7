import { batchModel } from '#libs/batches/batch/batch-model.ts';
import type { AnyInlineModel } from '#libs/event-log/inline-model.ts';
import { fileModel } from '#libs/files/file-model.ts';
import { organisationKind } from '#libs/people/facts/organisation-events.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { resourceModel, resourceVersionModel } from '#libs/records/resource-model.ts';
import { requestLogKind } from '#libs/request-log/seal/sealed-calls.ts';
import { fineTuningJobModel } from '#libs/fine-tuning/fine-tuning-job-model.ts';

/** All inline read models, which `sluice check records` compares with the log. */
export const inlineModels = [
  fileModel,
  batchModel,
  fineTuningJobModel,
  resourceModel([...resourceKinds, organisationKind, requestLogKind]),
  resourceVersionModel(resourceKinds),
] as unknown as readonly AnyInlineModel[];
