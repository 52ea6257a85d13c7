import type { OperationTexts } from '#libs/http/openapi.ts';

const messages = [{ role: 'user', content: 'Why is the sky blue?' }];

/** The errors of every operation that calls a model. */
export const callErrors = {
  missing_credentials: 'nothing says which provider to call',
  virtual_key_not_found: 'the virtual key does not exist in this workspace',
  virtual_key_expired: 'its time is over',
  config_not_found: 'the config does not exist',
  config_override_not_allowed: 'the config of the key is fixed, and the request names another one or changes it',
  model_not_allowed: 'the credential is not for this model',
  unsupported_operation: 'the provider does not have this operation',
  usage_limit_exceeded: 'a budget is used up',
  price_unknown: 'the call falls under a budget of money, and nobody knows its price',
  rate_limited: 'a rate of the gateway is used up',
  provider_rate_limited: 'the provider has said to wait, and the time is not over',
  circuit_open: 'the target failed too often and is not called for a while',
  upstream_unreachable: 'the provider cannot be reached',
  upstream_headers_timeout: 'the provider does not answer in time',
};

const promptErrors = {
  prompt_not_found: 'there is no such prompt in this workspace',
  prompt_version_not_found: 'the prompt has no such version or label',
  prompt_too_large: 'it is too large with these variables',
};

/** Calls that are translated for each provider, prompts that make them, and models. */
export const callTexts: OperationTexts = {
  createChatCompletion: {
    description:
      'The target is named by the model (`@virtual-key/model`), by `x-gateway-virtual-key` or `x-gateway-provider`, or by a config. ' +
      'With `stream` the answer comes as server-sent events. Retries, fallbacks, cache and guardrails are those of the config; an error ' +
      'of the provider keeps its status, and 246 and 446 are answers that guardrails found fault with or refused.',
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
  renderPrompt: {
    description:
      'Answers the request that would be sent, and in `missing_variables` the names that no variable has. The prompt is named by its ' +
      'slug, with `@` and a version or label for another version than the one in use.',
    example: { variables: { customer: 'Ada', question: 'Where is my order?' } },
    errors: promptErrors,
  },
  createPromptCompletion: {
    description:
      'The variables replace the names in double braces. The answer is that of a chat completion, as JSON or a stream.',
    example: { variables: { customer: 'Ada', question: 'Where is my order?' } },
    errors: {
      ...promptErrors,
      ...callErrors,
      missing_variables: 'the template needs variables that the request lacks; `null` leaves one empty',
    },
  },
  listModels: {
    description:
      'Of every virtual key and provider of the workspace, with ids like `@virtual-key/model`; with `x-gateway-virtual-key` or ' +
      '`x-gateway-provider` of that one alone, by the names that it has there. A provider that does not answer in time is left out.',
    errors: { upstream_invalid_response: 'a provider answers with no list of models, and no other one answers' },
  },
  retrieveModel: {
    description:
      'A model of the list, by its id (`@virtual-key/model`), or with the header `x-gateway-virtual-key` as the provider names it.',
    errors: { model_not_found: 'no provider that the key may use has it' },
  },
  deleteModel: {
    description:
      'Forwarded to the provider that the id or the header `x-gateway-virtual-key` names. Only fine-tuned models can be deleted there.',
    errors: { missing_credentials: 'nothing says at which provider', unsupported_operation: 'the provider cannot' },
  },
};
