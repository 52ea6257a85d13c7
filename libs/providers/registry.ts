import { anthropic } from './anthropic/index.ts';
import { azure } from './azure/index.ts';
import { bedrock } from './bedrock/index.ts';
import { cohere } from './cohere/index.ts';
import { gemini } from './gemini/index.ts';
import { openGroqAmend } from './groq-usage.ts';
import { mistral } from './mistral/index.ts';
import { openAiCompatible } from './openai-compatible.ts';
import { relayAreas, type Provider, type RelayArea } from './provider.ts';
import { vertex } from './vertex/index.ts';

// Base URLs, operations and dialects are those of the providers' own API references.
// Providers that need more than a few words changed have folders of their own.
// Relayed areas: of the hosted ones, what their API references list; of a server of one's own, whatever it has.
const ofOpenAi: readonly RelayArea[] = relayAreas.filter((area) => area !== 'rerank');

const providers: readonly Provider[] = [
  openAiCompatible({
    id: 'openai',
    baseUrl: 'https://api.openai.com/v1',
    clientHeaders: ['openai-organization', 'openai-project', 'openai-beta'],
    settingHeaders: {
      'openai-organization': 'openai_organization',
      'openai-project': 'openai_project',
      'openai-beta': 'openai_beta',
    },
    relays: ofOpenAi,
    dialect: null,
    fineTuning: true,
  }),
  anthropic,
  gemini,
  vertex,
  bedrock,
  azure,
  cohere,
  mistral,
  // Any server of the dialect on a host of the operator's own: vLLM, Ollama, llama.cpp, LM Studio.
  openAiCompatible({ id: 'openai-compatible', clientHeaders: ['openai-beta'], relays: relayAreas }),
  openAiCompatible({ id: 'vllm', relays: ['audio', 'responses', 'rerank'] }),
  openAiCompatible({ id: 'ollama', dialect: { renames: { max_completion_tokens: 'max_tokens' } } }),
  openAiCompatible({
    id: 'simulator',
    clientHeaders: ['openai-beta'],
    relays: relayAreas,
    dialect: null,
    fineTuning: true,
  }),
  openAiCompatible({
    id: 'groq',
    baseUrl: 'https://api.groq.com/openai/v1',
    operations: ['chat', 'models'],
    relays: ['audio', 'responses'],
    dialect: {
      usageBesideChoices: true,
      answers: { hints: ['"x_groq"'], open: openGroqAmend },
      notes: ['usage of `x_groq`'],
    },
  }),
  openAiCompatible({
    id: 'together',
    baseUrl: 'https://api.together.xyz/v1',
    relays: ['images', 'audio', 'rerank'],
    dialect: {
      renames: { max_completion_tokens: 'max_tokens' },
      finishReasons: { eos: 'stop' },
      usageBesideChoices: true,
    },
  }),
  openAiCompatible({
    id: 'fireworks',
    baseUrl: 'https://api.fireworks.ai/inference/v1',
    relays: ['responses', 'rerank'],
  }),
  openAiCompatible({
    id: 'openrouter',
    baseUrl: 'https://openrouter.ai/api/v1',
    clientHeaders: ['http-referer', 'x-title'],
    relays: ['responses'],
    // A provider behind it that failed, in an answer that says 200.
    dialect: { finishReasons: { error: 'failure' }, usageBesideChoices: true },
  }),
  openAiCompatible({
    id: 'deepseek',
    baseUrl: 'https://api.deepseek.com/v1',
    operations: ['chat', 'models'],
    // Broken off for want of machines: neither an end nor a limit of the caller's.
    dialect: {
      renames: { max_completion_tokens: 'max_tokens' },
      finishReasons: { insufficient_system_resource: 'failure' },
      usageBesideChoices: true,
    },
  }),
  openAiCompatible({
    id: 'xai',
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
    baseUrl: 'https://api.perplexity.ai',
    operations: ['chat'],
    asksForUsage: false,
    dialect: { renames: { max_completion_tokens: 'max_tokens' }, usageBesideChoices: true },
  }),
];

const byId: ReadonlyMap<string, Provider> = new Map(providers.map((provider) => [provider.id, provider]));

// The names that clients of the interface we descend from already send.
const aliases: ReadonlyMap<string, string> = new Map([
  ['azure-openai', 'azure'],
  ['mistral-ai', 'mistral'],
  ['aws-bedrock', 'bedrock'],
  ['google', 'gemini'],
  ['vertex-ai', 'vertex'],
  ['together-ai', 'together'],
  ['fireworks-ai', 'fireworks'],
  ['x-ai', 'xai'],
  ['perplexity-ai', 'perplexity'],
]);

/** The provider of that id (as `x-gateway-provider` names it), or undefined. */
export function findProvider(id: string): Provider | undefined {
  return byId.get(aliases.get(id) ?? id);
}

export const providerIds: readonly string[] = [...byId.keys()];
