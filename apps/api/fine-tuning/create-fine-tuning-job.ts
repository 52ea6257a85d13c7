import { randomInt } from 'node:crypto';
import type { BatchTargets } from '#libs/credentials/batch-targets.ts';
import {
  credentialHeaders,
  readCredentials,
  fingerprintCall,
  noDefaults,
  refuseConfigOverride,
} from '#libs/credentials/requested.ts';
import { missingCredentials, type Credential } from '#libs/credentials/resolve.ts';
import { otherModelsIn } from '#libs/calls/allowed-models.ts';
import { unknownEnd, type Admission, type AdmissionRequest, type Spent } from '#libs/calls/admission.ts';
import { assertModelAllowed } from '#libs/calls/allowed-models.ts';
import { CreateFineTuningJobRequest, FineTuningJobObject } from '#libs/contracts/batches/fine-tuning.ts';
import type { FineTuningRequest } from '#libs/database/schema.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Files } from '#libs/files/files.ts';
import type { FineTuningJobs } from '#libs/fine-tuning/fine-tuning-jobs.ts';
import type { StoredObjects } from '#libs/calls/protect/stored-objects/stored-objects.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { clampEstimate } from '#libs/prices/estimate-tokens.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { getCallIdentity, toEventMetadata } from '#libs/identity/call-identity.ts';
import { repeatErrors } from '../document-texts.ts';
import { getCallMetadata } from '../calls/call-metadata.ts';

export type CreateJobDeps = {
  fineTuningJobs: FineTuningJobs;
  files: Files;
  fineTuningTargets: BatchTargets;
  admission: Admission;
  storedObjects: Pick<StoredObjects, 'requireModel'>;
};

/**
 * POST /v1/fine_tuning/jobs. The job is recorded here, and a worker creates it at the provider. Unusable files
 * (unknown, or with another purpose) and providers without fine-tuning are rejected immediately.
 */
export function createFineTuningJob({
  fineTuningJobs,
  files,
  fineTuningTargets: targets,
  admission,
  storedObjects,
}: CreateJobDeps): Route {
  return {
    method: 'POST',
    path: '/v1/fine_tuning/jobs',
    operationId: 'createFineTuningJob',
    summary: 'Create a fine-tuning job at a provider',
    description:
      'Upload the training file with the purpose `fine-tune` first. A worker sends it to the provider and follows the ' +
      'job until it ends. If you repeat a request with the same `Idempotency-Key`, the first job is returned.',
    example: { model: '@main/gpt-4o-mini', training_file: 'file-abc' },
    errors: {
      file_not_found: '`training_file` or `validation_file` is not a file of this workspace',
      missing_credentials: 'the request does not name a provider; configs are not supported here',
      virtual_key_not_found: 'the virtual key does not exist in this workspace',
      model_not_allowed: 'the credential does not allow this model',
      unsupported_operation: 'the provider does not support fine-tuning',
      ...repeatErrors,
    },
    tag: 'Fine-tuning',
    scope: 'fine_tuning.write',
    responses: { 200: { description: 'The job, with status `validating_files`.', schema: FineTuningJobObject } },
    ...withInput(
      { headers: credentialHeaders, body: CreateFineTuningJobRequest },
      async ({ body }, request, response) => {
        const { workspaceId, defaults } = getCaller(request);
        const credentials = readCredentials(request.headers);
        refuseConfigOverride(defaults, credentials, false);
        // A config routes calls to several targets, but a job is trained at one, so the config is not used here.
        const choice = await targets.choose({
          workspaceId,
          credentials: { ...credentials, config: null },
          defaults: noDefaults,
          model: body.model,
        });
        requireFineTuning(choice.caller);
        const model = choice.model ?? body.model;
        if (choice.caller.type === 'virtual_key' && choice.caller.key.models !== undefined) {
          const { models, slug } = choice.caller.key;
          assertModelAllowed(models, slug, model, { operation: 'chat' });
        }
        if (choice.caller.type === 'virtual_key')
          await storedObjects.requireModel({ workspaceId, credential: choice.caller.key }, model);
        const trainingFile = await requireFile(files, workspaceId, body.training_file, 'training_file');
        if (body.validation_file) await requireFile(files, workspaceId, body.validation_file, 'validation_file');
        const identity = { ...getCallIdentity(request), fingerprint: fingerprintCall(request, credentials) };
        const reservation = await admission.admit({
          ...trainingOf(body, choice.caller, model, trainingFile.bytes),
          workspaceId,
          keyId: getCaller(request).keyId,
          metadata: getCallMetadata(request),
        });
        const training = {
          request: {
            ...toRequest(body, model),
            ...(model === body.model ? {} : { sent_model: body.model }),
            ...(choice.caller.type === 'virtual_key' ? { virtual_key: choice.caller.key.slug } : {}),
          },
          trainingFileId: body.training_file,
          validationFileId: body.validation_file ?? null,
          metadata: body.metadata ?? null,
          target: (unit: UnitOfWork, batchId: string) => targets.store(unit, { workspaceId, batchId }, choice),
        };
        let isBegun = false;
        try {
          const { job, replayed } = await fineTuningJobs.create(identity, toEventMetadata(request), training);
          isBegun = !replayed;
          if (replayed) response.setHeader('idempotent-replayed', 'true');
          response.json(job);
        } finally {
          // Its charge is known when it ends, if at all. Until then its estimate counts.
          reservation?.settle(isBegun ? unknownEnd : noEnd);
        }
      },
    ),
  };
}

const noEnd: Spent = { usage: null, attempts: [], status: null, model: null };

const bytesPerToken = 4;
/** The usual choice of providers for a small file. */
const usualEpochs = 3;

/**
 * A job from the point of view of budgets and rates: approximately as many tokens as its file has, in each of its
 * epochs.
 */
function trainingOf(
  body: CreateFineTuningJobRequest,
  credential: Credential,
  model: string,
  fileBytes: number,
): Omit<AdmissionRequest, 'workspaceId' | 'keyId' | 'metadata'> {
  const tokens = (fileBytes / bytesPerToken) * (epochsOf(body) ?? usualEpochs);
  const estimate = { inputTokens: clampEstimate(tokens), outputTokensMax: 0, choices: 1 };
  return {
    target: targetOf(credential),
    model,
    operation: 'stored_objects',
    work: 'training',
    config: null,
    prompt: null,
    waitsForBudget: false,
    estimate: () => estimate,
    otherModels: () => otherModelsIn({}),
  };
}

/** null: the provider chooses. */
function epochsOf({ method, hyperparameters }: CreateFineTuningJobRequest): number | null {
  const ofMethod = Object.values(method ?? {}).find((value) => typeof value === 'object' && value !== null);
  const epochs =
    (ofMethod as Pick<CreateFineTuningJobRequest, 'hyperparameters'> | undefined)?.hyperparameters?.n_epochs ??
    hyperparameters?.n_epochs;
  return typeof epochs === 'number' ? epochs : null;
}

function targetOf(credential: Credential): AdmissionRequest['target'] {
  if (credential.type !== 'virtual_key') {
    const provider = credential.type === 'none' ? '' : credential.provider;
    return { provider, label: provider };
  }
  const { id, slug, provider } = credential.key;
  return { provider, label: slug, credentialId: id };
}

/** If the request has no seed, one is chosen here, so that the job shows it from the start and all attempts send the same. */
function toRequest(body: CreateFineTuningJobRequest, model: string): FineTuningRequest {
  const { suffix, seed, method, hyperparameters, integrations } = body;
  return {
    model,
    seed: seed ?? randomInt(2_147_483_648),
    ...(suffix ? { suffix } : {}),
    ...(method ? { method } : {}),
    ...(hyperparameters ? { hyperparameters } : {}),
    ...(integrations ? { integrations } : {}),
  };
}

function requireFineTuning(credential: Credential): void {
  if (credential.type === 'none') throw missingCredentials();
  const id = credential.type === 'virtual_key' ? credential.key.provider : credential.provider;
  if (findProvider(id)?.fineTuning) return;
  const message = `The provider ${id} does not support fine-tuning through the OpenAI API. Use a key of another provider.`;
  throw new GatewayError('unsupported_operation', 'unsupported_operation', message);
}

async function requireFile(
  files: Files,
  workspaceId: string,
  fileId: string,
  param: string,
): ReturnType<Files['retrieve']> {
  const file = await files.retrieve(workspaceId, fileId).catch((error: unknown) => {
    if (!(error instanceof GatewayError) || error.kind !== 'not_found') throw error;
    throw new GatewayError('invalid_request', 'file_not_found', error.message, { param });
  });
  if (file.purpose === 'fine-tune') return file;
  const message = `The file ${fileId} has the purpose '${file.purpose}'. Upload it with the purpose 'fine-tune'.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param });
}
