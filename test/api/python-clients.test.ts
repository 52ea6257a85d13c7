import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { hasPackage, python } from './python.ts';
import { storeWireKeys, wireKeys } from './wire-keys.ts';

// The clients for Python, unchanged, against each wire format that the core translates to. Left out where their versions are
// not installed (CONTRIBUTING.md).

const folder = path.join(import.meta.dirname, 'python');
const requirements = readFileSync(path.join(folder, 'requirements.txt'), 'utf8');
const isThere = ['anthropic', 'openai', 'google-genai', 'litellm'].every((name) => {
  const [, version] = new RegExp(`^${name}==(\\S+)$`, 'm').exec(requirements) ?? [];
  return hasPackage(name, version);
});

type Outcome = { client: string; provider: string; feature: string; problem: string | null };

/** Each client by the format that it speaks, and what it does beyond what all of them do. */
const clients: Record<string, readonly string[]> = {
  'openai, chat completions': [],
  'openai, Responses': [],
  'litellm, chat completions': [],
  'litellm, Messages': [],
  anthropic: ['token count'],
  'google-genai': ['token count'],
};

describe.skipIf(!isThere)('clients for Python', () => {
  let platform: TestPlatform;
  let outcomes: Outcome[];
  beforeAll(async () => {
    platform = await startPlatform({ worker: false });
    await storeWireKeys(platform);
    const models = wireKeys.map(({ provider, model, prefix }) => [
      provider,
      [`@wire-${provider}/${model}`, `@wire-${provider}/${prefix}sim-fault-400`],
    ]);
    const given = [path.join(folder, 'clients.py'), platform.baseUrl, platform.adminKey];
    const { stdout } = await promisify(execFile)(python, [...given, JSON.stringify(Object.fromEntries(models))], {
      encoding: 'utf8',
      env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1' },
      timeout: 100_000,
    });
    const lines = stdout.trim().split('\n');
    outcomes = lines.map((line) => JSON.parse(line) as Outcome);
  });
  afterAll(() => platform?.stop());

  describe.each(Object.entries(clients))('%s', (client, more) => {
    const features = ['text and stream', 'images', 'structured output', 'tools', 'errors', ...more];

    test.each(wireKeys)('with $provider', ({ provider }) => {
      const found = outcomes.filter((outcome) => outcome.client === client && outcome.provider === provider);
      expect(Object.fromEntries(found.map(({ feature, problem }) => [feature, problem]))).toEqual(
        Object.fromEntries(features.map((feature) => [feature, null])),
      );
    });
  });
});
