import { findProvider } from './registry.ts';

// The names that LiteLLM's proxy has for providers and their settings (docs.litellm.ai/docs/providers), for
// `sluice import litellm`. They are in this folder because only it names providers and settings.

/** A provider of LiteLLM: the part of `litellm_params.model` before the first slash. */
export type LiteLlmProvider = {
  /** The ID of the provider here. */
  provider: string;
  /** The variable with the credential of an entry that has none. */
  variable: string;
  /** The variable with the address of an entry that has none. */
  addressVariable?: string;
  /** What LiteLLM adds to an `api_base` without a path, and Sluice does not. */
  path?: string;
};

const openAi: LiteLlmProvider = {
  provider: 'openai',
  variable: 'OPENAI_API_KEY',
  addressVariable: 'OPENAI_API_BASE',
};
const openAiCompatible: LiteLlmProvider = { provider: 'openai-compatible', variable: 'OPENAI_API_KEY' };
const vertex: LiteLlmProvider = { provider: 'vertex', variable: 'VERTEX_CREDENTIALS' };
const ollama: LiteLlmProvider = {
  provider: 'ollama',
  variable: 'OLLAMA_API_KEY',
  addressVariable: 'OLLAMA_API_BASE',
  path: '/v1',
};
const vllm: LiteLlmProvider = {
  provider: 'vllm',
  variable: 'HOSTED_VLLM_API_KEY',
  addressVariable: 'HOSTED_VLLM_API_BASE',
};
const azure: LiteLlmProvider = { provider: 'azure', variable: 'AZURE_API_KEY', addressVariable: 'AZURE_API_BASE' };
const cohere: LiteLlmProvider = { provider: 'cohere', variable: 'COHERE_API_KEY' };

const liteLlmProviders: Readonly<Record<string, LiteLlmProvider>> = {
  openai: openAi,
  'text-completion-openai': openAi,
  custom_openai: openAiCompatible,
  openai_like: openAiCompatible,
  litellm_proxy: openAiCompatible,
  lm_studio: openAiCompatible,
  llamafile: openAiCompatible,
  xinference: openAiCompatible,
  anthropic: { provider: 'anthropic', variable: 'ANTHROPIC_API_KEY', path: '/v1' },
  gemini: { provider: 'gemini', variable: 'GEMINI_API_KEY', path: '/v1beta' },
  vertex_ai: vertex,
  vertex_ai_beta: vertex,
  bedrock: { provider: 'bedrock', variable: 'AWS_BEARER_TOKEN_BEDROCK' },
  azure,
  azure_text: azure,
  cohere,
  cohere_chat: cohere,
  mistral: { provider: 'mistral', variable: 'MISTRAL_API_KEY' },
  hosted_vllm: vllm,
  vllm,
  ollama,
  ollama_chat: ollama,
  groq: { provider: 'groq', variable: 'GROQ_API_KEY' },
  together_ai: { provider: 'together', variable: 'TOGETHERAI_API_KEY' },
  fireworks_ai: { provider: 'fireworks', variable: 'FIREWORKS_AI_API_KEY' },
  openrouter: { provider: 'openrouter', variable: 'OPENROUTER_API_KEY' },
  deepseek: { provider: 'deepseek', variable: 'DEEPSEEK_API_KEY' },
  xai: { provider: 'xai', variable: 'XAI_API_KEY' },
  cerebras: { provider: 'cerebras', variable: 'CEREBRAS_API_KEY' },
  perplexity: { provider: 'perplexity', variable: 'PERPLEXITYAI_API_KEY' },
};

/** Models that LiteLLM assigns to a provider although their names have no prefix. */
const knownModels: readonly (readonly [names: RegExp, prefix: string])[] = [
  [/^(?:gpt-|chatgpt-|o\d|text-embedding-|dall-e-|whisper-|tts-|omni-moderation|ft:)/, 'openai'],
  [/^claude-/, 'anthropic'],
  [/^gemini-/, 'vertex_ai'],
  [/^(?:command-|embed-|rerank-)/, 'cohere'],
];

/** The parts of a Bedrock model that choose an API, which Sluice chooses itself, or a region. */
const bedrockParts = /^(?:(?:converse|converse_like|invoke)\/)?(?:([a-z]{2,4}(?:-[a-z]+){1,3}-\d)\/)?/;

/**
 * A model of LiteLLM: its provider, its name at the provider and the settings that its name contains. With an address, a
 * provider that does not exist here is called as an OpenAI-compatible server. Null if the provider cannot be determined.
 */
export function parseLiteLlmModel(
  text: string,
  { namedProvider, hasAddress }: { namedProvider: string | null; hasAddress: boolean },
): (LiteLlmProvider & { model: string; settings: Readonly<Record<string, string>>; isGuess: boolean }) | null {
  const slash = text.indexOf('/');
  const first = slash < 0 ? '' : text.slice(0, slash);
  const isPrefix = first !== '' && (Object.hasOwn(liteLlmProviders, first) || namedProvider === first);
  const prefix = namedProvider ?? (isPrefix ? first : knownModels.find(([names]) => names.test(text))?.[1]);
  const rest = isPrefix ? text.slice(slash + 1) : text;
  const known = prefix === undefined || !Object.hasOwn(liteLlmProviders, prefix) ? undefined : liteLlmProviders[prefix];
  if (known === undefined) {
    const model = slash < 0 ? text : text.slice(slash + 1);
    return hasAddress ? { ...openAiCompatible, model, settings: {}, isGuess: true } : null;
  }
  if (known.provider !== 'bedrock') return { ...known, model: rest, settings: {}, isGuess: false };
  const [parts = '', region] = bedrockParts.exec(rest) ?? [];
  const settings = region === undefined ? {} : { aws_region: region };
  return { ...known, model: rest.slice(parts.length), settings, isGuess: false };
}

/** A parameter of `litellm_params` that is a setting here. */
export type LiteLlmSetting = {
  param: string;
  setting: string;
  /** The variables that LiteLLM reads without the parameter. */
  variables?: readonly string[];
  /** LiteLLM also takes the path of a file with the secret. */
  isFile?: true;
  /** The secret that is useless without it. */
  neededFor?: string;
};

/** The parameters of `litellm_params` that are settings of providers here. */
export const liteLlmSettings: readonly LiteLlmSetting[] = [
  { param: 'organization', setting: 'openai_organization' },
  { param: 'api_version', setting: 'azure_api_version', variables: ['AZURE_API_VERSION'] },
  { param: 'azure_ad_token', setting: 'azure_ad_token' },
  { param: 'tenant_id', setting: 'azure_entra_tenant_id' },
  { param: 'client_id', setting: 'azure_entra_client_id' },
  { param: 'client_secret', setting: 'azure_entra_client_secret' },
  { param: 'azure_scope', setting: 'azure_entra_scope' },
  { param: 'vertex_project', setting: 'vertex_project_id', variables: ['VERTEXAI_PROJECT'] },
  { param: 'vertex_location', setting: 'vertex_region', variables: ['VERTEXAI_LOCATION'] },
  { param: 'vertex_credentials', setting: 'vertex_service_account_json', isFile: true },
  { param: 'aws_region_name', setting: 'aws_region', variables: ['AWS_REGION_NAME', 'AWS_REGION'] },
  {
    param: 'aws_access_key_id',
    setting: 'aws_access_key_id',
    variables: ['AWS_ACCESS_KEY_ID'],
    neededFor: 'aws_secret_access_key',
  },
  { param: 'aws_secret_access_key', setting: 'aws_secret_access_key' },
  { param: 'aws_session_token', setting: 'aws_session_token' },
  { param: 'aws_role_name', setting: 'aws_role_arn' },
  { param: 'aws_external_id', setting: 'aws_external_id' },
];

/** Parameters with an address, besides `api_base`. */
export const liteLlmAddresses: readonly string[] = ['base_url', 'aws_bedrock_runtime_endpoint'];

/** The secret that stands for a whole credential if an entry has none, as far as it is not the `key`. */
const defaultSecrets: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  bedrock: { aws_secret_access_key: 'AWS_SECRET_ACCESS_KEY' },
  vertex: { vertex_service_account_json: 'VERTEX_CREDENTIALS' },
};

/** The variables that an entry without a credential uses, by member of a virtual key. */
export const defaultCredential = ({ provider, variable }: LiteLlmProvider): Readonly<Record<string, string>> =>
  defaultSecrets[provider] ?? { key: variable };

/** An address of LiteLLM, as the settings or the host of a virtual key. `note` says how it differs. */
export type LiteLlmAddress = {
  provider: string;
  settings: Readonly<Record<string, string>>;
  customHost: string | null;
  note: string | null;
};

/** Converts the `api_base` of an entry. */
export function toSluiceAddress({ provider, path }: LiteLlmProvider, base: URL): LiteLlmAddress {
  const [, resource] = /^([a-z0-9][a-z0-9-]*)\.openai\.azure\.com$/.exec(base.hostname) ?? [];
  if (provider === 'azure') {
    if (resource !== undefined) {
      return { provider, settings: { azure_resource_name: resource }, customHost: null, note: null };
    }
    const folder = base.pathname.replace(/\/+$/, '');
    const customHost = base.origin + (folder.endsWith('/openai') ? folder : `${folder}/openai`);
    return { provider, settings: {}, customHost, note: `custom_host is ${customHost}` };
  }
  const folder = base.pathname.replace(/\/+$/, '');
  const added = folder === '' ? (path ?? '') : folder;
  const customHost = base.origin + added;
  const note = added === folder ? null : `custom_host is ${customHost}`;
  if (customHost === findProvider(provider)?.address) return { provider, settings: {}, customHost: null, note: null };
  // LiteLLM calls every OpenAI-compatible server by the name of OpenAI.
  if (provider === 'openai') return { provider: 'openai-compatible', settings: {}, customHost, note };
  return { provider, settings: {}, customHost, note };
}
