const job = {
  id: 'ftjob-abc',
  object: 'fine_tuning.job',
  created_at: 1795473567,
  error: null,
  estimated_finish: null,
  fine_tuned_model: null,
  finished_at: null,
  hyperparameters: { batch_size: 'auto', learning_rate_multiplier: 'auto', n_epochs: 'auto' },
  integrations: null,
  metadata: null,
  method: {
    type: 'supervised',
    supervised: { hyperparameters: { batch_size: 'auto', learning_rate_multiplier: 'auto', n_epochs: 'auto' } },
  },
  model: '@main/gpt-4o-mini',
  organization_id: 'ws_abc',
  result_files: [],
  seed: 458416722,
  status: 'validating_files',
  trained_tokens: null,
  training_file: 'file-abc',
  user_provided_suffix: null,
  validation_file: null,
};
const chosen = { batch_size: 1, learning_rate_multiplier: 2, n_epochs: 3 };
/** The job after the provider has taken it. */
const followed = {
  ...job,
  hyperparameters: chosen,
  method: { type: 'supervised', supervised: { hyperparameters: chosen } },
};
const trainedJob = { ...followed, status: 'running', estimated_finish: job.created_at + 600 };
const endedJob = {
  ...followed,
  status: 'succeeded',
  fine_tuned_model: '@main/ft:gpt-4o-mini:acme::abc',
  finished_at: job.created_at + 600,
  result_files: ['file-def'],
  trained_tokens: 1_548,
};

/** Answers of fine-tuning jobs. */
export const fineTuningAnswers: Readonly<Record<string, object>> = {
  createFineTuningJob: job,
  listFineTuningJobs: { object: 'list', data: [endedJob], has_more: false },
  retrieveFineTuningJob: endedJob,
  // What was asked for is done by a worker, so the job is still as it was.
  pauseFineTuningJob: trainedJob,
  resumeFineTuningJob: { ...followed, status: 'paused' },
  cancelFineTuningJob: trainedJob,
  listFineTuningEvents: {
    object: 'list',
    data: [
      {
        id: 'ftevent-abc',
        object: 'fine_tuning.job.event',
        created_at: job.created_at + 600,
        level: 'info',
        message: 'Step 36/36: training loss=0.17',
        type: 'metrics',
        data: { step: 36, total_steps: 36, train_loss: 0.16602, train_mean_token_accuracy: 0.94577 },
      },
    ],
    has_more: true,
  },
  listFineTuningCheckpoints: {
    object: 'list',
    data: [
      {
        id: 'ftckpt_abc',
        object: 'fine_tuning.job.checkpoint',
        created_at: job.created_at + 600,
        fine_tuned_model_checkpoint: '@main/ft:gpt-4o-mini:acme::abc:ckpt-step-36',
        fine_tuning_job_id: job.id,
        metrics: { step: 36, train_loss: 0.16602, train_mean_token_accuracy: 0.94577 },
        step_number: 36,
      },
    ],
    first_id: 'ftckpt_abc',
    last_id: 'ftckpt_abc',
    has_more: false,
  },
};
