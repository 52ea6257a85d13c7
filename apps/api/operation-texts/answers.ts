import { providers } from '#libs/providers/provider-list.ts';
import { batchAnswers } from './batch-answers.ts';
import { chatAnswer } from './chat-answer.ts';
import { fineTuningAnswers } from './fine-tuning-answers.ts';
import { forwardedAnswers } from './forwarded-answers.ts';
import { logAnswers } from './log-answers.ts';
import { peopleAnswers } from './people-answers.ts';
import { versionAnswers } from './version-answers.ts';

const { id: provider = '' } = providers[0] ?? {};

const answerOfRetrieveSession = {
  object: 'session',
  workspace: { id: 'ws_abc', name: 'default', slug: 'default' },
  principal: { type: 'organisation_key', id: 'key_abc', name: 'admin', role: null, organisation_role: null },
  key_id: 'key_abc',
  session_id: null,
  scopes: null,
  expires_at: null,
  server: { version: '0.1.0', started_at: '2026-11-23T12:00:00.000Z' },
};
const answerOfSetIntegrationModels = {
  total: 1,
  allow_all_models: false,
  models: [
    {
      slug: 'gpt-5-mini',
      name: 'gpt-5-mini',
      enabled: true,
      is_custom: false,
      is_finetune: false,
      base_model_slug: null,
      pricing_config: null,
    },
  ],
};
const answerOfSetIntegrationWorkspaces = {
  total: 1,
  workspaces: [
    {
      id: 'ws_abc',
      enabled: true,
      usage_limits: [
        {
          credit_limit: 10000,
          type: 'cost',
          periodic_reset: 'monthly',
          next_usage_reset_at: '2026-12-01T00:00:00.000Z',
        },
      ],
      rate_limits: null,
    },
  ],
  global_workspace_access: { enabled: false, usage_limits: null, rate_limits: null },
};
const answerOfRetrieveGuardrails = {
  object: 'workspace.guardrails',
  input_guardrails: [{ 'default.contains': { operator: 'none', words: ['password'] }, deny: true }],
  output_guardrails: [],
};

const explainedTarget = {
  kind: 'target',
  path: 'config.targets[0]',
  name: null,
  provider,
  virtual_key: 'main',
  base_url: 'https://llm.example.com/v1',
  model: 'gpt-4o-mini',
  prompt: null,
  changes: [],
  retry: null,
  cache_seconds: null,
  has_breaker: false,
  input_guardrails: [],
  output_guardrails: [],
  problem: null,
};
const answerOfExplainConfig = {
  object: 'config.explanation',
  config: { id: 'config_abc', slug: 'support', version: 1 },
  steps: {
    kind: 'fallback',
    on_status_codes: null,
    options: [explainedTarget, { ...explainedTarget, path: 'config.targets[1]', virtual_key: 'spare' }],
  },
  text: [
    'Tries these in their order, and goes on unless the answer is 2xx:',
    `  Calls ${provider} through main for gpt-4o-mini`,
    `  Calls ${provider} through spare for gpt-4o-mini`,
  ],
};
const answerOfRetrieveSystem = {
  object: 'system',
  version: '0.1.0',
  processes: [
    {
      id: '01a209af-c074-7000-8001-885eb92291f8',
      app: 'worker',
      version: '0.1.0',
      host: 'sluice-worker-0',
      state: 'running',
      started_at: '2026-11-23T12:00:00.000Z',
      heard_at: '2026-11-23T12:40:00.000Z',
      stopped_at: null,
      unwritten_log_records: 0,
      lost_log_records: 0,
    },
  ],
  queues: [{ name: 'batch-chunk', ready: 0, active: 0, deferred: 0, oldest_seconds: 0 }],
  subscribers: [{ name: 'activity', events_behind: 0, seconds_behind: 0, failures: 0, last_error: null }],
  rollups: { seconds_behind: 26, groups_waiting: 1 },
  open_batches: { in_progress: 2 },
  database: {
    version: '18.4',
    size_bytes: 12_957_375,
    connections: 23,
    connections_max: 300,
    tables: [{ name: 'event', size_bytes: 507_904 }],
  },
  event_log: { events: 207, seconds_behind: 0, last_event_at: '2026-11-23T12:40:00.000Z' },
  read_model_check: null,
};

/** Answers of single operations, by their ids. */
export const answers: Readonly<Record<string, object>> = {
  ...batchAnswers,
  ...fineTuningAnswers,
  ...forwardedAnswers,
  ...logAnswers,
  ...peopleAnswers,
  ...versionAnswers,
  createChatCompletion: chatAnswer,
  createCompletion: {
    id: 'cmpl-abc',
    object: 'text_completion',
    created: 1795470000,
    model: 'sim-small',
    choices: [{ text: ' blue because air scatters it.', index: 0, logprobs: null, finish_reason: 'length' }],
    usage: { prompt_tokens: 3, completion_tokens: 20, total_tokens: 23 },
  },
  createEmbedding: {
    object: 'list',
    data: [
      { object: 'embedding', index: 0, embedding: [-0.0065, -0.0489, -0.0336] },
      { object: 'embedding', index: 1, embedding: [0.0229, 0.0144, -0.0654] },
    ],
    model: 'sim-embed',
    usage: { prompt_tokens: 4, total_tokens: 4 },
  },
  createPromptCompletion: { ...chatAnswer, model: 'gpt-5-mini' },
  renderPrompt: {
    success: true,
    data: {
      temperature: 0,
      model: 'gpt-5-mini',
      messages: [{ role: 'user', content: 'Answer Ada kindly: Where is my order?' }],
    },
    missing_variables: [],
    missing_required_variables: [],
  },
  listModels: {
    object: 'list',
    data: [
      { id: '@simulator/gpt-4o', object: 'model', created: 1770741189, owned_by: 'sluice-simulator' },
      { id: '@simulator/gpt-4o-mini', object: 'model', created: 1791088874, owned_by: 'sluice-simulator' },
    ],
  },
  retrieveModel: { id: '@simulator/gpt-4o', object: 'model', created: 1770741189, owned_by: 'sluice-simulator' },
  retrieveSession: answerOfRetrieveSession,
  createSession: { ...answerOfRetrieveSession, session_id: 'session_abc' },
  deleteSession: { object: 'session.deleted', deleted: true, ended: 0 },
  explainConfig: answerOfExplainConfig,
  listCircuits: { object: 'list', data: [], has_more: false },
  retrieveSystem: answerOfRetrieveSystem,
  createSystemCheck: {
    object: 'read_model_check',
    state: 'waiting',
    asked_at: '2026-11-23T12:00:00.000Z',
    ended_at: null,
    events: 0,
    problem: null,
  },
  setIntegrationModels: answerOfSetIntegrationModels,
  listIntegrationModels: answerOfSetIntegrationModels,
  deleteIntegrationModels: { total: 0, allow_all_models: false, models: [] },
  setIntegrationWorkspaces: answerOfSetIntegrationWorkspaces,
  listIntegrationWorkspaces: answerOfSetIntegrationWorkspaces,
  retrieveGuardrails: answerOfRetrieveGuardrails,
  setGuardrails: answerOfRetrieveGuardrails,
};
