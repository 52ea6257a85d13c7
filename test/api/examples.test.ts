import { execFile, execFileSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { hasPackage, python } from './python.ts';

// Every file of examples/ as a stranger runs it. A language that this machine lacks is left out.

const folder = path.resolve(import.meta.dirname, '../../examples');

/** What each topic prints if it works. */
const printed: Readonly<Record<string, RegExp>> = {
  batch: /"custom_id":\s*"(?:line-1|one)".*"status_code":\s*200/s,
  chat: /\w+ \w+/,
  fallback: /config\.targets\[1\].*sim-small/s,
  'fine-tuning': /ftjob-/,
  prompt: /\w+ \w+/,
  'structured-batch': /"validated_outputs":\s*\{\s*"checked":\s*3,\s*"passed_on_first_call":\s*3/,
  stream: /\w+ \w+|\[DONE\]/,
  tools: /get_weather/,
};

const runs = (command: string, args: readonly string[]): boolean => {
  try {
    execFileSync(command, args, { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
};

const languages = [
  { name: 'curl', ending: '.sh', command: 'bash', isThere: runs('curl', ['--version']) },
  { name: 'typescript', ending: '.ts', command: process.execPath, isThere: true },
  { name: 'python', ending: '.py', command: python, isThere: hasPackage('openai') },
];

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform();
});
afterAll(() => platform.stop());

describe.each(languages)('$name', ({ name, ending, command, isThere }) => {
  test('has an example of each topic, and no other', () => {
    const files = readdirSync(path.join(folder, name)).map((file) => path.basename(file, ending));
    expect(files.toSorted()).toEqual(Object.keys(printed).toSorted());
  });

  test.skipIf(!isThere).each(Object.keys(printed))('%s', async (topic) => {
    const file = path.join(folder, name, `${topic}${ending}`);
    const { stdout } = await promisify(execFile)(command, [file], {
      timeout: 30_000,
      env: {
        ...process.env,
        SLUICE_URL: new URL(platform.baseUrl).origin,
        SLUICE_API_KEY: platform.adminKey,
      },
    });
    expect(stdout).toMatch(printed[topic] ?? /^$/);
    expect(stdout).not.toMatch(/"error":\s*\{/);
  });
});
