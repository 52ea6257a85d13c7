import { chatLine, toJsonl } from '../batch-kit.ts';
import type { Step } from './walk.ts';

const jsonl = (lines: readonly unknown[]): File => new File([toJsonl(lines)], 'requests.jsonl');
const asked = [chatLine('request-1'), chatLine('request-2')];
const slow = [chatLine('request-1', { model: '@simulator/sim-small+4s' })];
const failing = [1, 2, 3].map((line) => chatLine(`request-${line}`, { model: '@simulator/sim-fault-400' }));
const example = {
  messages: [
    { role: 'user', content: 'Hello?' },
    { role: 'assistant', content: 'Yes.' },
  ],
};
const message = (model: string) => ({
  custom_id: 'request-1',
  params: { model, max_tokens: 100, messages: [{ role: 'user', content: 'Why is the sky blue?' }] },
});
const training = Array.from({ length: 12 }, () => example);
const png = new File([Buffer.from('89504e470d0a1a0a', 'hex')], 'lighthouse.png', { type: 'image/png' });
const mp3 = new File([Buffer.from('fffb9000', 'hex')], 'hello.mp3', { type: 'audio/mpeg' });

// The simulator says what it received.
const ofImages = { varies: ['b64_json'], differs: ['received'] };
const main = { 'x-gateway-virtual-key': 'main' };
const isOf = (status: string) => (answer: Record<string, unknown>) => answer['status'] === status;
const isFull = ({ data }: Record<string, unknown>): boolean => (data as unknown[]).length > 0;

const ofReplays = { varies: ['cost_usd', 'similarity', 'p50', 'p95', 'p99'] };

/** Files, uploads and batches. */
export const batchSteps: readonly Step[] = [
  { id: 'uploadFile', form: { purpose: 'batch', file: jsonl(asked) } },
  { id: 'listFiles' },
  { id: 'retrieveFile', params: { file_id: 'file-abc' } },
  { id: 'dryRunBatch', varies: ['cost_of_input_usd'] },
  { id: 'createWebhookEndpoint', changes: { url: 'SIMULATOR' }, name: 'whe_new' },
  { id: 'createBatch' },
  { id: 'retrieveBatch', params: { batch_id: 'batch_abc' }, until: isOf('completed'), varies: ['cost_usd'] },
  {
    id: 'listWebhookDeliveries',
    params: { id: 'whe_new' },
    until: ({ data }) => (data as { last_status_code: unknown }[]).some(({ last_status_code: code }) => code !== null),
  },
  { id: 'resendWebhookDelivery', params: { id: 'whe_new', delivery_id: 'whd_abc' } },
  { id: 'listBatches', varies: ['cost_usd'] },
  { id: 'createMessageBatch', changes: { requests: [message('@simulator/sim-small')] }, name: 'batch_messages' },
  {
    id: 'retrieveMessageBatch',
    params: { batch_id: 'batch_messages' },
    until: ({ processing_status: status }) => status === 'ended',
  },
  { id: 'retrieveMessageBatchResults', params: { batch_id: 'batch_messages' } },
  { id: 'listMessageBatches' },
  { id: 'deleteMessageBatch', params: { batch_id: 'batch_messages' } },
  { id: 'createMessageBatch', changes: { requests: [message('@simulator/sim-small+4s')] }, name: 'batch_long' },
  { id: 'cancelMessageBatch', params: { batch_id: 'batch_long' } },
  { id: 'listBatchLines', params: { batch_id: 'batch_abc' }, query: { limit: '1' } },
  {
    id: 'retrieveBatchLine',
    params: { batch_id: 'batch_abc', line: '1' },
    until: ({ log }) => log !== null,
    varies: ['content', 'cost_usd'],
  },
  { id: 'listLogs', query: { limit: '1', batch_id: 'batch_abc' }, until: isFull, varies: ['cost_usd'] },
  // Only slow calls have steps.
  { id: 'retrieveLog', params: { log_id: 'log_abc' }, varies: ['content', 'cost_usd'], differs: ['steps'] },
  { id: 'createTrafficReplay', changes: { filters: undefined, batch_id: 'batch_abc', dry_run: false } },
  { id: 'retrieveTrafficReplay', params: { id: 'replay_abc' }, until: isOf('completed'), ...ofReplays },
  { id: 'listTrafficReplays', ...ofReplays },
  { id: 'deleteTrafficReplay', params: { id: 'replay_abc' } },
  { id: 'deleteFile', params: { file_id: 'file-abc' } },
  { id: 'uploadFile', form: { purpose: 'batch', file: jsonl(slow) }, name: 'file-slow' },
  { id: 'createBatch', changes: { input_file_id: 'file-slow' }, name: 'batch_slow' },
  { id: 'retrieveBatch', params: { batch_id: 'batch_slow' }, until: isOf('in_progress'), isUnlike: true },
  { id: 'pauseBatch', params: { batch_id: 'batch_slow' }, varies: ['model'] },
  { id: 'resumeBatch', params: { batch_id: 'batch_slow' }, varies: ['model'] },
  { id: 'cancelBatch', params: { batch_id: 'batch_slow' }, varies: ['model'] },
  { id: 'uploadFile', form: { purpose: 'batch', file: jsonl(failing) }, name: 'file-bad' },
  { id: 'createBatch', changes: { input_file_id: 'file-bad' }, name: 'batch_bad' },
  { id: 'retrieveBatch', params: { batch_id: 'batch_bad' }, until: isOf('completed'), isUnlike: true },
  { id: 'listBatchFailures', params: { batch_id: 'batch_bad' }, varies: ['code', 'message'] },
  { id: 'retryBatch', params: { batch_id: 'batch_bad' } },
  { id: 'createUpload', changes: { bytes: 5 } },
  { id: 'addUploadPart', params: { upload_id: 'upload_abc' }, form: { data: new Blob(['hello']) } },
  { id: 'retrieveUpload', params: { upload_id: 'upload_abc' } },
  { id: 'completeUpload', params: { upload_id: 'upload_abc' }, changes: { part_ids: ['part_abc'] } },
  { id: 'createUpload', name: 'upload_new' },
  { id: 'cancelUpload', params: { upload_id: 'upload_new' } },
];

const job = { fine_tuning_job_id: 'ftjob-abc' };
const slowJob = { fine_tuning_job_id: 'ftjob-slow' };

const trainingFor = (time: string) => ({
  training_file: 'file-train',
  model: `@main/gpt-4o-mini+training:${time}`,
});
const changedModels = ['model', 'fine_tuned_model'];

/** Fine-tuning jobs: one that ends, and one that is paused and cancelled. */
export const fineTuningSteps: readonly Step[] = [
  { id: 'uploadFile', form: { purpose: 'fine-tune', file: jsonl(training) }, name: 'file-train', differs: ['purpose'] },
  { id: 'createFineTuningJob', changes: trainingFor('50ms'), varies: changedModels },
  { id: 'retrieveFineTuningJob', params: job, until: isOf('succeeded'), varies: changedModels },
  { id: 'listFineTuningJobs', varies: changedModels },
  { id: 'listFineTuningEvents', params: job, varies: ['message'] },
  { id: 'listFineTuningCheckpoints', params: job, varies: ['fine_tuned_model_checkpoint'] },
  { id: 'createFineTuningJob', changes: trainingFor('8s'), name: 'ftjob-slow', varies: changedModels },
  { id: 'retrieveFineTuningJob', params: slowJob, until: isOf('running'), isUnlike: true },
  { id: 'pauseFineTuningJob', params: slowJob, varies: changedModels },
  { id: 'retrieveFineTuningJob', params: slowJob, until: isOf('paused'), isUnlike: true },
  { id: 'resumeFineTuningJob', params: slowJob, varies: changedModels },
  { id: 'cancelFineTuningJob', params: slowJob, varies: changedModels, differs: ['status', 'estimated_finish'] },
];

/** Calls, and the areas that are forwarded whole. */
export const callSteps: readonly Step[] = [
  { id: 'createChatCompletion', varies: ['content'] },
  // A call with everything that analytics groups by: a config, a user, metadata, and the trace of the feedback.
  { id: 'createConfig' },
  {
    id: 'createApiKey',
    changes: { defaults: { metadata: { _user: 'ada', team: 'search' } } },
    keeps: ({ key }) => ({ KEY: `Bearer ${String(key)}` }),
    isUnlike: true,
  },
  {
    id: 'createChatCompletion',
    changes: { model: 'gpt-5-mini' },
    headers: {
      authorization: 'KEY',
      'x-gateway-config': 'support',
      'x-gateway-trace-id': '01a209afc07470008001885eb92291f8',
    },
    isUnlike: true,
  },
  { id: 'createCompletion', varies: ['text'] },
  { id: 'createEmbedding' },
  {
    id: 'createVirtualKey',
    changes: { name: 'Claude', slug: 'anthropic', provider: 'anthropic', key: 'any', custom_host: 'SIMULATOR' },
    isUnlike: true,
  },
  { id: 'createAnthropicMessage', varies: ['text'] },
  { id: 'countMessageTokens' },
  ...['generateContent', 'streamGenerateContent', 'countContentTokens', 'embedContent', 'batchEmbedContents'].map(
    (id) => ({
      id,
      params: { model: '@simulator/gpt-4o' },
    }),
  ),
  ...[
    'createDeploymentChatCompletion',
    'createDeploymentCompletion',
    'rawPredictMessage',
    'streamRawPredictMessage',
  ].map((id) => ({ id, params: { model: '@simulator/gpt-4o' }, varies: ['text', 'content'] })),
  { id: 'createDeploymentEmbedding', params: { model: '@simulator/sim-embed' }, varies: ['embedding'] },
  { id: 'rawPredictTokenCount' },
  { id: 'invokeModel', params: { model: '@simulator/gpt-4o' }, varies: ['text'] },
  { id: 'invokeModelWithResponseStream', params: { model: '@simulator/gpt-4o' } },
  { id: 'listModels' },
  { id: 'retrieveModel', params: { model: '@simulator/gpt-4o' } },
  { id: 'createModeration' },
  { id: 'createImage', varies: ['b64_json'] },
  { id: 'editImage', form: { model: '@main/gpt-image-1', image: png, prompt: 'Make it night' }, ...ofImages },
  { id: 'createImageVariation', form: { model: '@main/dall-e-2', image: png, n: '2' }, ...ofImages },
  { id: 'createSpeech' },
  { id: 'createTranscription', form: { model: '@main/gpt-4o-mini-transcribe', file: mp3 }, varies: ['text'] },
  { id: 'createTranslation', form: { model: '@main/whisper-1', file: mp3 }, varies: ['text'] },
  { id: 'createRerank', changes: { model: '@simulator/rerank-v3.5' } },
  { id: 'createResponse', varies: ['text'] },
  ...[
    'countResponseInputTokens',
    'compactResponse',
    'createConversation',
    'updateConversation',
    'createConversationItems',
    'createAssistant',
    'updateAssistant',
    'createThread',
    'createThreadAndRun',
    'updateThread',
    'createMessage',
    'updateMessage',
    'createRun',
    'updateRun',
    'submitToolOutputs',
    'createVectorStore',
    'updateVectorStore',
    'searchVectorStore',
    'createVectorStoreFile',
    'updateVectorStoreFile',
    'createFileBatch',
  ].map((id) => ({ id, headers: main })),
];

/** The request log, its exports, feedback, events and the server. */
export const logSteps: readonly Step[] = [
  { id: 'createLogs' },
  { id: 'createFeedback', keeps: ({ feedback_ids }) => ({ FEEDBACK: String(feedback_ids) }) },
  { id: 'updateFeedback', params: { id: 'FEEDBACK' } },
  { id: 'createLogExport' },
  { id: 'listLogExports' },
  { id: 'retrieveLogExport', params: { id: 'export_abc' } },
  { id: 'updateLogExport', params: { id: 'export_abc' } },
  { id: 'startLogExport', params: { id: 'export_abc' } },
  { id: 'retrieveLogExport', params: { id: 'export_abc' }, until: isOf('success'), isUnlike: true },
  { id: 'downloadLogExport', params: { id: 'export_abc' } },
  { id: 'createLogExport', name: 'export_new' },
  { id: 'startLogExport', params: { id: 'export_new' } },
  { id: 'cancelLogExport', params: { id: 'export_new' } },
  { id: 'deleteLogExport', params: { id: 'export_abc' } },
  { id: 'listEvents', query: { limit: '1' } },
  { id: 'replayEvents', query: { stream: 'ws_abc', version: '1' } },
  { id: 'listRecords', query: { kind: 'config', limit: '1' } },
  { id: 'listAuditLogs', query: { resource_type: 'config', method: 'POST', page_size: '1' }, varies: ['request_body'] },
  { id: 'listCircuits' },
  { id: 'retrieveSystem', varies: ['host'], differs: ['open_batches'] },
  { id: 'createSystemCheck' },
  { id: 'createSession', keeps: ({ session_id }) => ({ session_abc: String(session_id) }) },
  { id: 'listBrowserSessions' },
  { id: 'retrieveBrowserSession', params: { id: 'session_abc' } },
  { id: 'deleteBrowserSession', params: { id: 'session_abc' } },
  { id: 'deleteSession' },
];
