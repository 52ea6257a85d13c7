import type { OperationTexts } from '#libs/http/openapi.ts';

const batchErrors = {
  invalid_value: 'a parameter is wrong; `param` names it',
  too_many_open_batches: 'the workspace has as many open batches as it may have; `Retry-After` says when to try again',
  too_many_queued_lines: 'its open batches have as many lines left as they may have',
};
const targetErrors = {
  missing_credentials: 'nothing says which provider to call',
  virtual_key_not_found: 'the virtual key does not exist in this workspace',
  config_not_found: 'the config does not exist',
};
const repeated = {
  idempotency_key_reused: 'the `Idempotency-Key` came before with another body',
  request_in_progress: 'the first request with this `Idempotency-Key` is still under way',
};
const uploadErrors = {
  storage_full: 'the disk of the server has no room but for results',
  storage_quota_exceeded: 'the workspace stores as much as it may',
};
const resultErrors = { results_not_kept: 'the batch ended too long ago; its files have the results' };
const jobErrors = { fine_tune_not_found: 'there is no such job in this workspace' };
const createBatchExample = { input_file_id: 'file-abc', endpoint: '/v1/chat/completions', completion_window: '24h' };
const atProvider = 'With a virtual key in the headers, an id that is none of Sluice is looked for at its provider.';

/** Files, batches and fine-tuning jobs. */
export const batchTexts: OperationTexts = {
  uploadFile: {
    description:
      'A multipart form with `purpose` (`batch`, `fine-tune`, …) and `file`. The file is stored as it comes and may be of any size up ' +
      'to `SLUICE_UPLOAD_MAX`. With an `Idempotency-Key` a repeat makes no second file.',
    example: { purpose: 'batch', file: 'requests.jsonl' },
    errors: {
      ...uploadErrors,
      file_too_large: 'it is larger than `SLUICE_UPLOAD_MAX`',
      invalid_multipart: 'the form is broken',
      unsupported_media_type: 'the body is no multipart form',
      ...repeated,
    },
  },
  createUpload: {
    description:
      'For files that are too large to begin again when the connection breaks. It ends an hour after its last ' +
      'part, and a day after its creation at the latest. With `sha256`, an upload of the ' +
      'same file that broke, or was just completed, is answered in the place of a new one, with its `parts`.',
    example: { filename: 'in.jsonl', purpose: 'batch', bytes: 52_428_800, mime_type: 'application/jsonl' },
    errors: {
      too_many_uploads: 'the workspace has as many that are not complete as it may have',
      storage_quota_exceeded: 'the file would not fit beside what the workspace stores and awaits',
    },
  },
  addUploadPart: {
    description: 'A multipart form with `data`, at most 64 MiB. Parts may be sent at the same time and in any order.',
    example: { data: '(the bytes of the part)' },
    errors: { upload_not_pending: 'it is completed, cancelled or expired', storage_full: 'the disk has no room' },
  },
  completeUpload: {
    description:
      'The parts in the order of their bytes; together they must have as many as were announced, and the `md5` or `sha256`, if there ' +
      'is one. Repeating it answers the same file.',
    example: { part_ids: ['part_abc', 'part_def'] },
    errors: { upload_not_pending: 'it is cancelled or expired', invalid_value: 'the parts are not those of the file' },
  },
  cancelUpload: {
    description: 'Its parts are removed. Repeating it changes nothing.',
    errors: { upload_not_pending: 'it is completed: delete its file' },
  },
  retrieveUpload: {
    description: 'Its status, its file when it is completed, and the parts that have arrived, with their SHA-256.',
  },
  listFiles: {
    description:
      'Newest first unless `order` is `asc`, filtered by `purpose`. The output and error files of batches are among them. `after` is the ' +
      'id of the last file of the page before.',
  },
  retrieveFile: {
    description: `Name, purpose, size and state of a file, without its content. ${atProvider}`,
  },
  retrieveFileContent: {
    description: `The bytes as they were stored. Takes \`Range\`, so that a download that broke goes on. ${atProvider}`,
    errors: { range_not_satisfiable: 'the file ends before the range' },
  },
  deleteFile: {
    description: `A batch that has begun keeps its input, and ends as if the file were there. Repeating it answers 404. ${atProvider}`,
  },
  createBatch: {
    description:
      'Answers at once, whatever the size of the file; a worker checks it and calls its lines. Every line ends in exactly one of the ' +
      'output and the error file. With an `Idempotency-Key` a repeat gets the first batch.',
    example: createBatchExample,
    errors: { ...batchErrors, ...targetErrors, ...repeated },
  },
  dryRunBatch: {
    description:
      'What validation would find, where calls for each model would go, what the lines may cost, and whether the budgets suffice. ' +
      'Nothing is created or called. At most 20 seconds of reading; `is_whole` says whether that was enough.',
    example: createBatchExample,
    errors: {
      ...batchErrors,
      ...targetErrors,
      too_many_queries: 'the workspace has one under way, and two more that wait',
    },
  },
  listBatches: {
    description:
      'Newest first. `after` is the id of the last batch of the page before. The counts of batches that run are those of the moment.',
  },
  retrieveBatch: {
    description: `With \`waits\`: why it makes less progress than it could, or none. ${atProvider}`,
  },
  listBatchLines: {
    description:
      'By line number, while the batch runs and after it, as long as its results are kept. A search looks at a bounded number of lines ' +
      'for each page, and `after` goes on from there.',
    errors: resultErrors,
  },
  retrieveBatchLine: {
    description: 'The line of the input file, its result, and a summary of its record in the request log.',
    errors: resultErrors,
  },
  listBatchFailures: {
    description: 'The most frequent causes, at most fifty, with the number of lines and the message of the first one.',
  },
  retryBatch: {
    description:
      'With the options and the target of the first batch, unless the request has others. `custom_id`s stay; `retry_of` names the first ' +
      'batch. The body may be left out: then all lines that failed are called again.',
    example: { lines: 'failed' },
    errors: {
      batch_not_ended: 'lines of it may still be called',
      nothing_to_retry: 'it has no such line',
      input_file_deleted: 'its input or its error file is gone',
      credentials_not_kept: 'credentials came with it and were deleted when it ended: send them again',
      too_many_open_batches: batchErrors.too_many_open_batches,
      too_many_queued_lines: batchErrors.too_many_queued_lines,
      ...uploadErrors,
    },
  },
  retrieveBatchOutput: {
    description: 'The content of the output file, as `GET /v1/files/{id}/content` with `output_file_id` answers it.',
    errors: { no_output_file: 'the batch has not ended, or no line of it succeeded' },
  },
  cancelBatch: {
    description:
      'What was answered stays; other lines end as `batch_cancelled`. Repeating it changes nothing; 409 for a batch that has ' +
      `ended otherwise. ${atProvider}`,
  },
  pauseBatch: {
    description: 'The deadline stays. Repeating it changes nothing; 409 unless the batch is validating or in progress.',
  },
  resumeBatch: { description: 'Repeating it changes nothing; 409 unless the batch is validating or in progress.' },
  createFineTuningJob: {
    description:
      'The training file, uploaded here with the purpose `fine-tune`, is sent to the provider by a worker, which then follows the job until it ' +
      'has ended. With an `Idempotency-Key` a repeat gets the first job.',
    example: { model: '@main/gpt-4o-mini', training_file: 'file-abc' },
    errors: {
      file_not_found: '`training_file` or `validation_file` is not a file of this workspace',
      missing_credentials: 'nothing says at which provider; a config is not used here',
      virtual_key_not_found: 'the virtual key does not exist in this workspace',
      model_not_allowed: 'the credential is not for this model',
      unsupported_operation: 'the provider has no fine-tuning',
      ...repeated,
    },
  },
  listFineTuningJobs: {
    description: 'Jobs of Sluice at all providers. `after` is the id of the last job of the page before.',
  },
  retrieveFineTuningJob: {
    description: `The job as it was last seen at its provider, which a worker asks again and again while the job runs. ${atProvider}`,
    errors: jobErrors,
  },
  cancelFineTuningJob: {
    description: `A worker cancels it at the provider. Repeating it changes nothing; 409 for a job that has ended otherwise. ${atProvider}`,
    errors: jobErrors,
  },
  pauseFineTuningJob: {
    description: `A worker asks the provider, whose refusal is among the events of the job. 409 unless it is queued or running. ${atProvider}`,
    errors: jobErrors,
  },
  resumeFineTuningJob: {
    description: `A worker asks the provider, whose refusal is among the events of the job. 409 unless it is paused. ${atProvider}`,
    errors: jobErrors,
  },
  listFineTuningEvents: {
    description:
      'What the provider said of the training, copied while the job runs, so that it stays when the provider has forgotten it.',
    errors: jobErrors,
  },
  listFineTuningCheckpoints: {
    description: 'Models that can be used from steps of the training, as far as the provider offers them.',
    errors: jobErrors,
  },
};
