import { anthropic } from './anthropic/index.ts';
import { azure } from './azure/index.ts';
import { bedrock } from './bedrock/index.ts';
import { cohere } from './cohere/index.ts';
import { gemini } from './gemini/index.ts';
import { groq } from './groq/index.ts';
import { mistral } from './mistral/index.ts';
import { openai } from './openai/index.ts';
import { openAiCompatible } from './openai-compatible.ts';
import { allRelayAreas, unused, type Provider } from './provider.ts';
import { vertex } from './vertex/index.ts';

/**
 * Every provider, in the order of docs and messages. A provider has a folder if its API differs from OpenAI's in more than
 * details, or if it has its own settings. After a change run `npm run generate`. Base URLs, operations and pass-through
 * areas are from the providers' own API references; self-hosted servers can have any area.
 */
export const providers: readonly Provider[] = [
  openai,
  anthropic,
  gemini,
  vertex,
  bedrock,
  azure,
  cohere,
  mistral,
  // Any OpenAI-compatible server on a host of the operator's: vLLM, Ollama, llama.cpp, LM Studio.
  openAiCompatible({
    id: 'openai-compatible',
    clientHeaders: ['openai-beta'],
    settings: {
      ...unused(openai.settings),
      // These belong to providers that are called through this one, with a custom host.
      huggingface_base_url: { destination: true, unused: true },
      snowflake_account: { destination: true, unused: true },
      workers_ai_account_id: { unused: true },
    },
    relays: allRelayAreas,
  }),
  openAiCompatible({ id: 'vllm', settings: unused(openai.settings), relays: ['audio', 'responses', 'rerank'] }),
  openAiCompatible({
    id: 'ollama',
    settings: unused(openai.settings),
    variant: { renames: { max_completion_tokens: 'max_tokens' } },
  }),
  openAiCompatible({
    id: 'simulator',
    settings: unused(openai.settings),
    clientHeaders: ['openai-beta'],
    relays: allRelayAreas,
    variant: null,
    fineTuning: true,
  }),
  groq,
  openAiCompatible({
    id: 'together',
    aliases: ['together-ai'],
    baseUrl: 'https://api.together.xyz/v1',
    relays: ['images', 'audio', 'rerank'],
    variant: {
      renames: { max_completion_tokens: 'max_tokens' },
      finishReasons: { eos: 'stop' },
      usageBesideChoices: true,
    },
  }),
  openAiCompatible({
    id: 'fireworks',
    aliases: ['fireworks-ai'],
    baseUrl: 'https://api.fireworks.ai/inference/v1',
    settings: { fireworks_account_id: { unused: true } },
    relays: ['responses', 'rerank'],
  }),
  openAiCompatible({
    id: 'openrouter',
    baseUrl: 'https://openrouter.ai/api/v1',
    clientHeaders: ['http-referer', 'x-title'],
    relays: ['responses'],
    // `error`: the provider behind it failed, although the status is 200.
    variant: { finishReasons: { error: 'failure' }, usageBesideChoices: true },
  }),
  openAiCompatible({
    id: 'deepseek',
    baseUrl: 'https://api.deepseek.com/v1',
    operations: ['chat', 'models'],
    // The answer was cut off because the provider was overloaded: neither a normal end nor the caller's limit.
    variant: {
      renames: { max_completion_tokens: 'max_tokens' },
      finishReasons: { insufficient_system_resource: 'failure' },
      usageBesideChoices: true,
    },
  }),
  openAiCompatible({
    id: 'xai',
    aliases: ['x-ai'],
    baseUrl: 'https://api.x.ai/v1',
    operations: ['chat', 'completions', 'models'],
    relays: ['images', 'responses'],
  }),
  openAiCompatible({
    id: 'cerebras',
    baseUrl: 'https://api.cerebras.ai/v1',
    operations: ['chat', 'completions', 'models'],
  }),
  openAiCompatible({
    id: 'perplexity',
    aliases: ['perplexity-ai'],
    baseUrl: 'https://api.perplexity.ai',
    operations: ['chat'],
    notes: ['It rejects `json_object`.'],
    asksForUsage: false,
    variant: { renames: { max_completion_tokens: 'max_tokens' }, usageBesideChoices: true },
  }),
];
