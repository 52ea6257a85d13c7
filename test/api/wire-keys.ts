import { generateKeyPairSync } from 'node:crypto';
import type { TestPlatform } from '#test/platform.ts';

/** One wire format that the core speaks to providers, and how a virtual key reaches a server that speaks it. */
type WireKey = {
  provider: string;
  model: string;
  embeddings: string | null;
  /** Before a model's name, where the provider tells by it what the model is. */
  prefix: string;
  /** `secret` is what authorises the calls, where the format sends or signs with one text. */
  key: (origin: string, secret: string) => Record<string, string>;
};

const privateKey = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({
  type: 'pkcs8',
  format: 'pem',
});

/** A service account whose tokens the simulator issues. */
export const serviceAccount = (tokenUri: string): string =>
  JSON.stringify({
    type: 'service_account',
    project_id: 'sim-project',
    private_key_id: 'key-1',
    private_key: privateKey,
    client_email: 'sluice@sim-project.example',
    token_uri: tokenUri,
  });

/** The wire formats, each as a virtual key of a provider that the simulator at `origin` stands in for. */
export const wireKeys: readonly WireKey[] = [
  {
    provider: 'openai',
    model: 'sim-small',
    embeddings: 'sim-embedding',
    prefix: '',
    key: (origin, key) => ({ key, custom_host: `${origin}/v1` }),
  },
  {
    provider: 'anthropic',
    model: 'sim-small',
    embeddings: null,
    prefix: '',
    key: (origin, key) => ({ key, custom_host: `${origin}/v1` }),
  },
  {
    provider: 'gemini',
    model: 'sim-small',
    embeddings: 'sim-embedding',
    prefix: '',
    key: (origin, key) => ({ key, custom_host: `${origin}/v1beta` }),
  },
  {
    provider: 'vertex',
    model: 'gemini-sim-small',
    embeddings: 'text-embedding-sim',
    prefix: 'google/',
    key: (origin) => ({
      custom_host: `${origin}/v1`,
      vertex_project_id: 'sim-project',
      vertex_region: 'europe-west4',
      vertex_service_account_json: serviceAccount(`${origin}/token`),
    }),
  },
  {
    provider: 'bedrock',
    model: 'sim-small',
    embeddings: 'amazon.titan-embed-text-v2:0',
    prefix: '',
    key: (origin, secret) => ({
      custom_host: origin,
      aws_region: 'eu-central-1',
      // Signatures of this access key the simulator verifies; of others it takes any.
      aws_access_key_id: secret === 'simulator' ? 'AKIASIMULATOR' : 'AKIAOTHER',
      aws_secret_access_key: secret,
    }),
  },
  {
    provider: 'cohere',
    model: 'sim-small',
    embeddings: 'sim-embedding',
    prefix: '',
    key: (origin, key) => ({ key, custom_host: `${origin}/v2` }),
  },
];

/** Stores a virtual key `wire-<provider>` for each wire format, and for `more` of the same kind. */
export async function storeWireKeys(platform: TestPlatform, more: readonly Pick<WireKey, 'provider' | 'key'>[] = []) {
  const { origin } = new URL(platform.simulatorUrl);
  for (const { provider, key } of [...wireKeys, ...more]) {
    const stored = await fetch(`${platform.baseUrl}/virtual-keys`, {
      method: 'POST',
      headers: { authorization: `Bearer ${platform.adminKey}`, 'content-type': 'application/json' },
      body: JSON.stringify({ name: provider, slug: `wire-${provider}`, provider, ...key(origin, 'simulator') }),
    });
    if (!stored.ok) throw new Error(`${provider}: ${await stored.text()}`);
  }
}
