import { providers } from '#libs/providers/provider-list.ts';
import type { OperationTexts } from '#libs/http/openapi.ts';

const messages = [{ role: 'user', content: 'Why is the sky blue?' }];
const callErrors = {
  missing_credentials: 'nothing says which provider to call',
  virtual_key_not_found: 'the virtual key does not exist in this workspace',
  model_not_allowed: 'the credential is not for this model',
  config_not_found: 'the config does not exist',
  usage_limit_exceeded: 'a budget is used up',
  rate_limited: 'a rate of the gateway is used up',
  circuit_open: 'the target failed too often and is not called for a while',
};
const batchErrors = {
  invalid_value: 'a parameter is wrong; `param` names it',
  too_many_open_batches: 'the workspace has as many open batches as it may have',
};

/**
 * What the OpenAPI document says of operations beyond their summaries: how they behave, a body to send, and the codes of their own
 * errors. A test parses each example by the operation's schema.
 */
export const operationTexts: OperationTexts = {
  createChatCompletion: {
    description:
      'The target is named by the model (`@virtual-key/model`), by `x-gateway-virtual-key` or `x-gateway-provider`, or by a config. ' +
      'With `stream` the answer comes as server-sent events. Retries, fallbacks, cache and guardrails are those of the config.',
    example: { model: '@simulator/sim-small', messages, max_tokens: 100 },
    errors: callErrors,
  },
  createCompletion: {
    description: 'For models that continue a text. Targets and configs are named as for chat completions.',
    example: { model: '@simulator/sim-small', prompt: 'The sky is', max_tokens: 20 },
    errors: callErrors,
  },
  createEmbedding: {
    description: 'One vector for each text of `input`. Targets and configs are named as for chat completions.',
    example: { model: '@simulator/sim-embed', input: ['The sky', 'The sea'] },
    errors: callErrors,
  },
  listModels: {
    description:
      'Of every virtual key that the key of the request may use, with ids like `@virtual-key/model`. A provider that does not answer ' +
      'in time is left out.',
  },
  uploadFile: {
    description:
      'A multipart form with `purpose` (`batch`, `fine-tune`, …) and `file`. The file is stored as it comes and may be of any size up ' +
      'to `SLUICE_UPLOAD_MAX`. With an `Idempotency-Key` a repeat makes no second file.',
    errors: {
      storage_full: 'the disk of the server has no room but for results',
      storage_quota_exceeded: 'the workspace stores as much as it may',
    },
  },
  retrieveFileContent: {
    description: 'The bytes as they were stored. Takes `Range`, so that a download that broke goes on.',
  },
  deleteFile: { description: 'A batch that has begun keeps its input, and ends as if the file were there.' },
  createBatch: {
    description:
      'Answers at once, whatever the size of the file; a worker checks it and calls its lines. Every line ends in exactly one of the ' +
      'output and the error file. With an `Idempotency-Key` a repeat gets the first batch.',
    example: { input_file_id: 'file-abc', endpoint: '/v1/chat/completions', completion_window: '24h' },
    errors: batchErrors,
  },
  dryRunBatch: {
    description:
      'What validation would find, where calls for each model would go, what the lines may cost, and whether the budgets suffice. ' +
      'Nothing is created or called. At most 20 seconds of reading; `is_whole` says whether that was enough.',
    example: { input_file_id: 'file-abc', endpoint: '/v1/chat/completions', completion_window: '24h' },
    errors: { ...batchErrors, too_many_dry_runs: 'the workspace has one under way' },
  },
  retrieveBatch: { description: 'With `waits`: why it makes less progress than it could, or none.' },
  listBatchLines: {
    description:
      'By line number, while the batch runs and after it, as long as its results are kept. A search looks at a bounded number of lines ' +
      'for each page, and `after` goes on from there.',
    errors: { results_not_kept: 'the batch ended too long ago; its files have the results' },
  },
  retrieveBatchLine: {
    description: 'The line of the input file, its result, and its record in the request log with every attempt.',
    errors: { results_not_kept: 'the batch ended too long ago; its files have the results' },
  },
  listBatchFailures: {
    description: 'The fifty most frequent causes, with the number of lines and the message of the first one.',
  },
  retryBatch: {
    description:
      'With the options of the first batch unless the body has others. `custom_id`s stay; `retry_of` names the first batch.',
    example: { lines: 'failed' },
    errors: {
      batch_not_ended: 'lines of it may still be called',
      nothing_to_retry: 'it has no such line',
      input_file_deleted: 'its input is gone',
    },
  },
  cancelBatch: {
    description: 'What was answered stays; other lines end as `batch_cancelled`. Repeating it changes nothing.',
  },
  pauseBatch: {
    description: 'The deadline stays. Repeating it changes nothing.',
    errors: { conflict: 'it has ended or is ending' },
  },
  resumeBatch: { description: 'Repeating it changes nothing; 409 for a batch that has ended or is ending.' },
  createFineTuningJob: {
    description:
      'The training file is uploaded to the provider by a worker, which then follows the job there until it has ended.',
    example: { model: '@main/gpt-4o-mini', training_file: 'file-abc' },
  },
  createConfig: {
    description: 'Where calls go and what happens around them. Calls name it by its slug in `x-gateway-config`.',
    example: {
      name: 'Support',
      config: { strategy: { mode: 'fallback' }, targets: [{ virtual_key: 'main' }, { virtual_key: 'spare' }] },
    },
    errors: { slug_taken: 'another one has this slug' },
  },
  updateConfig: {
    description:
      'A change of the document is a new version. Calls use it from then on; batches that have begun keep theirs.',
  },
  explainConfig: {
    description:
      'Which conditions hold, which target is chosen, and why one would be refused, by the code that routes calls.',
    example: { config: 'support', body: { model: 'gpt-4o-mini' }, metadata: { tier: 'gold' } },
    errors: { config_not_found: 'the config does not exist' },
  },
  createGuardrail: {
    description: 'Checks of requests or answers, which configs and workspaces name by slug.',
    example: {
      name: 'No passwords',
      checks: [{ id: 'default.contains', parameters: { operator: 'none', words: ['password'] } }],
      actions: { deny: true },
    },
  },
  createVirtualKey: {
    description: 'The credential is encrypted and never shown again. Calls name it as `@slug/model`.',
    example: { name: 'Main', slug: 'main', provider: providers[0]?.id, key: 'sk-…' },
    errors: { slug_taken: 'another one has this slug' },
  },
  createApiKey: {
    description: 'The value is in this answer alone. `scopes` may be none that the key of the request lacks.',
    example: { name: 'search service', scopes: ['chat.write', 'batches.write', 'batches.read'] },
  },
  rotateApiKey: {
    description: 'The new value is in this answer alone. The one before works until the transition time has passed.',
  },
  createUsageLimitPolicy: {
    description:
      'A budget of US cents or tokens for calls that meet the conditions, counted apart for each value of `group_by`. It is checked ' +
      'before a call and settled after it.',
    example: {
      name: 'A team a month',
      type: 'cost',
      credit_limit: 10_000,
      periodic_reset: 'monthly',
      conditions: [{ key: 'metadata.team', value: '*' }],
      group_by: [{ key: 'metadata.team' }],
    },
  },
  createRateLimitPolicy: {
    description: 'Calls or tokens in a minute, hour or day for calls that meet the conditions.',
    example: {
      name: 'Each key',
      type: 'requests',
      unit: 'rpm',
      value: 600,
      conditions: [],
      group_by: [{ key: 'api_key' }],
    },
  },
  createPrompt: {
    description: 'A template with variables in double braces. Its versions are numbered, and one of them is in use.',
  },
  createPromptCompletion: {
    description:
      'The variables replace the names in double braces. The answer is that of a chat completion, as JSON or a stream.',
    example: { variables: { customer: 'Ada', question: 'Where is my order?' } },
    errors: callErrors,
  },
  listLogs: {
    description:
      'The plain list, times and traces cost what a page costs. Other filters read backwards for at most ten seconds.',
    errors: { search_too_broad: 'so little matches that the search takes too long: choose a shorter time' },
  },
  retrieveLog: { description: 'With the `steps` of the call, and its bodies where they were recorded.' },
  createLogs: {
    description: 'They are priced and counted in analytics like others, but in no budget or rate.',
    example: {
      request: { url: 'https://api.openai.com/v1/chat/completions', body: { model: 'gpt-4o-mini' } },
      response: {
        status: 200,
        response_time: 840,
        body: { model: 'gpt-4o-mini', usage: { prompt_tokens: 20, completion_tokens: 300 } },
      },
    },
  },
  createLogExport: {
    description: 'It is started by another operation; a worker writes the file, and goes on with it after a crash.',
    example: {
      filters: { status_code: [429, 500] },
      requested_data: ['id', 'created_at', 'ai_model', 'cost'],
      format: 'csv',
    },
  },
  streamChanges: {
    description:
      'Server-sent events for pages that read again what has changed: `event: change` with `{"noun": "batch", "id": "batch_…"}`, and ' +
      '`event: calls` when the request log has new records. They have no ids; a client that connects again reads everything anew.',
    errors: { too_many_streams: 'the process or the workspace has as many streams open as it may have' },
  },
  streamEvents: {
    description:
      'Server-sent events, each with its id. A client that connects again sends the last one as `Last-Event-ID`, as browsers do by ' +
      'themselves, and misses none.',
  },
  listEvents: {
    description: 'Every change is an event. Ids grow, and a reader that goes on after the last one misses none.',
  },
  createFeedback: {
    description: 'Values from -10 to 10 for calls of a trace.',
    example: { trace_id: '01a209afc07470008001885eb92291f8', value: 1, weight: 1 },
  },
  createInvite: {
    description: 'The answer has a link with a token that works once and expires; Sluice sends no mail.',
  },
};
