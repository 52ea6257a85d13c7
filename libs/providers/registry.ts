import { openAiCompatible } from './openai-compatible.ts';
import { relayAreas, type Provider, type RelayArea } from './provider.ts';

// Base URLs and operations: reference/interface-and-providers.md 6.1 and the providers' own API references. Servers that
// need requests rewritten (Mistral's `random_seed`, Anthropic, Gemini, Bedrock, Cohere) have folders of their own.
// Of the hosted ones, what their API references list; of a server of one's own, whatever it has.
const ofOpenAi: readonly RelayArea[] = relayAreas.filter((area) => area !== 'rerank');

const providers: readonly Provider[] = [
  openAiCompatible({
    id: 'openai',
    baseUrl: 'https://api.openai.com/v1',
    clientHeaders: ['openai-organization', 'openai-project', 'openai-beta'],
    relays: ofOpenAi,
  }),
  // Any server of the dialect on a host of the operator's own: vLLM, Ollama, llama.cpp, LM Studio.
  openAiCompatible({ id: 'openai-compatible', clientHeaders: ['openai-beta'], relays: relayAreas }),
  openAiCompatible({ id: 'vllm', relays: ['audio', 'responses', 'rerank'] }),
  openAiCompatible({ id: 'ollama' }),
  openAiCompatible({ id: 'simulator', clientHeaders: ['openai-beta'], relays: relayAreas }),
  openAiCompatible({
    id: 'groq',
    baseUrl: 'https://api.groq.com/openai/v1',
    operations: ['chat', 'models'],
    relays: ['audio', 'responses'],
  }),
  openAiCompatible({ id: 'together', baseUrl: 'https://api.together.xyz/v1', relays: ['images', 'audio', 'rerank'] }),
  openAiCompatible({
    id: 'fireworks',
    baseUrl: 'https://api.fireworks.ai/inference/v1',
    relays: ['responses', 'rerank'],
  }),
  openAiCompatible({ id: 'openrouter', baseUrl: 'https://openrouter.ai/api/v1', relays: ['responses'] }),
  openAiCompatible({ id: 'deepseek', baseUrl: 'https://api.deepseek.com/v1', operations: ['chat', 'models'] }),
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
  }),
];

const byId: ReadonlyMap<string, Provider> = new Map(providers.map((provider) => [provider.id, provider]));

// The names that clients of the interface we descend from already send.
const aliases: ReadonlyMap<string, string> = new Map([
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
