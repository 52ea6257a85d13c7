import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';

/** `root` is Sluice's address without a path. */
export type Place = { root: string; key: string; home: string; work: string };

export type Agent = {
  name: string;
  package: string;
  version: string;
  command: string;
  dialect: string;
  env: (place: Place) => Record<string, string>;
  args: (task: string, place: Place) => string[];
  /** Writes what the agent reads from its home. */
  prepare?: (place: Place) => Promise<void>;
};

/** The public model that all agents ask for. Claude Code lists only names that begin like this. */
export const model = 'claude-agent';

const claudeEnv = {
  ANTHROPIC_MODEL: model,
  ANTHROPIC_SMALL_FAST_MODEL: model,
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
  DISABLE_AUTOUPDATER: '1',
  IS_SANDBOX: '1',
};

const claude = {
  package: '@anthropic-ai/claude-code',
  version: '2.1.332',
  command: 'claude',
  args: (task: string): string[] => ['-p', task, '--allowedTools', 'Bash', '--model', model],
};

/** The agents as their documentation configures them for a gateway, without permission to ask anybody. */
export const agents: readonly Agent[] = [
  {
    ...claude,
    name: 'claude',
    dialect: 'Anthropic Messages',
    env: ({ root, key }) => ({ ...claudeEnv, ANTHROPIC_BASE_URL: root, ANTHROPIC_AUTH_TOKEN: key }),
  },
  {
    ...claude,
    name: 'claude-bedrock',
    dialect: 'Bedrock',
    env: ({ root, key }) => ({
      ...claudeEnv,
      CLAUDE_CODE_USE_BEDROCK: '1',
      AWS_REGION: 'us-east-1',
      ANTHROPIC_BEDROCK_BASE_URL: root,
      AWS_BEARER_TOKEN_BEDROCK: key,
    }),
  },
  {
    ...claude,
    name: 'claude-vertex',
    dialect: 'Vertex AI',
    env: ({ root, key }) => ({
      ...claudeEnv,
      CLAUDE_CODE_USE_VERTEX: '1',
      CLOUD_ML_REGION: 'us-east5',
      ANTHROPIC_VERTEX_PROJECT_ID: 'project',
      ANTHROPIC_VERTEX_BASE_URL: `${root}/v1`,
      CLAUDE_CODE_SKIP_VERTEX_AUTH: '1',
      ANTHROPIC_CUSTOM_HEADERS: `x-gateway-api-key: ${key}`,
    }),
  },
  {
    name: 'codex',
    package: '@openai/codex',
    version: '0.171.0',
    command: 'codex',
    dialect: 'OpenAI Responses',
    env: ({ key }) => ({ SLUICE_API_KEY: key }),
    args: (task) => ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', task],
    prepare: async ({ root, home }) => {
      await mkdir(path.join(home, '.codex'));
      const config = [
        `model = "${model}"`,
        'model_provider = "sluice"',
        '[model_providers.sluice]',
        'name = "Sluice"',
        `base_url = "${root}/v1"`,
        'env_key = "SLUICE_API_KEY"',
        'wire_api = "responses"',
      ];
      await writeFile(path.join(home, '.codex/config.toml'), config.join('\n'));
    },
  },
  {
    name: 'gemini',
    package: '@google/gemini-cli',
    version: '0.61.0',
    command: 'gemini',
    dialect: 'Gemini',
    env: ({ root, key }) => ({
      GOOGLE_GEMINI_BASE_URL: root,
      GEMINI_API_KEY: key,
      GEMINI_CLI_TRUST_WORKSPACE: 'true',
    }),
    args: (task) => ['-p', task, '--yolo', '-m', model],
    prepare: async ({ home }) => {
      const settings = { security: { auth: { selectedType: 'gemini-api-key' } } };
      await mkdir(path.join(home, '.gemini'));
      await writeFile(path.join(home, '.gemini/settings.json'), JSON.stringify(settings));
    },
  },
  {
    name: 'opencode',
    package: 'opencode-ai',
    version: '1.18.33',
    command: 'opencode',
    dialect: 'OpenAI chat',
    env: ({ key }) => ({ SLUICE_API_KEY: key }),
    args: (task) => ['run', '-m', `sluice/${model}`, task],
    prepare: async ({ root, home, work }) => {
      const config = {
        $schema: 'https://opencode.ai/config.json',
        permission: 'allow',
        provider: {
          sluice: {
            npm: '@ai-sdk/openai-compatible',
            options: { baseURL: `${root}/v1`, apiKey: '{env:SLUICE_API_KEY}' },
            models: { [model]: { name: model, tool_call: true } },
          },
        },
      };
      await mkdir(path.join(home, '.config'), { recursive: true });
      await writeFile(path.join(work, 'opencode.json'), JSON.stringify(config));
    },
  },
];
