// Families of settings, by the beginning of their names, and who has a use for one. Claude is at home in several clouds,
// and servers that speak OpenAI's dialect may stand for OpenAI itself.
const families: Readonly<Record<string, readonly string[]>> = {
  openai: ['openai', 'azure', 'openai-compatible', 'vllm', 'ollama', 'simulator'],
  anthropic: ['anthropic', 'bedrock', 'vertex', 'azure'],
  azure: ['azure'],
  aws: ['bedrock'],
  vertex: ['vertex'],
  fireworks: ['fireworks'],
  // No providers of their own here: whoever uses them says openai-compatible and gives a host.
  huggingface: ['openai-compatible'],
  workers: ['openai-compatible'],
  snowflake: ['openai-compatible'],
};

export type ForeignSetting = { name: string; providers: readonly string[] };

/** The first of these settings that is another provider's, and whose it is; null when `provider` may have them all. */
export function findForeignSetting(provider: string, settings: readonly string[]): ForeignSetting | null {
  for (const name of settings) {
    const providers = families[name.slice(0, name.indexOf('_'))];
    if (providers !== undefined && !providers.includes(provider)) return { name, providers };
  }
  return null;
}
