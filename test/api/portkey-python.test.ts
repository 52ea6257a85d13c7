import { execFile, execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { hasPackage, python } from './python.ts';

// Every method that Portkey's official client for Python has, unmodified, of both its clients: it is called in python/*.py, or
// there is a reason in python/methods.py why not. Left out where that version of the client is not installed (CONTRIBUTING.md).

const folder = path.join(import.meta.dirname, 'python');
const script = path.join(folder, 'methods.py');
const [, pinned = ''] = /^portkey-ai==(\S+)$/m.exec(readFileSync(path.join(folder, 'requirements.txt'), 'utf8')) ?? [];
const isThere = hasPackage('portkey-ai', pinned);
const options = { encoding: 'utf8', env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1' } } as const;

type Listed = { methods: Record<string, string[]>; reasons: Record<string, string> };
type Outcome = { client: string; method: string; problem: string | null };
type BrokenOff = { client: string; area: string; problem: string };

const listed: Listed = isThere
  ? (JSON.parse(execFileSync(python, [script, 'list'], options)) as Listed)
  : { methods: {}, reasons: {} };
const isMeant = (method: string, reason: string): boolean => method === reason || method.startsWith(`${reason}.`);

describe.skipIf(!isThere)(`portkey-ai ${pinned}`, () => {
  let platform: TestPlatform;
  let outcomes: Outcome[];
  let brokenOff: BrokenOff[];
  beforeAll(async () => {
    platform = await startPlatform();
    const given = [script, 'try', platform.baseUrl, platform.adminKey];
    const { stdout } = await promisify(execFile)(python, given, { ...options, timeout: 100_000 });
    const lines = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Outcome | BrokenOff);
    outcomes = lines.filter((line) => 'method' in line);
    brokenOff = lines.filter((line) => 'area' in line);
  });
  afterAll(() => platform?.stop());

  describe.each(Object.entries(listed.methods))('%s', (client, methods) => {
    const excused = new Set(
      methods.filter((method) => Object.keys(listed.reasons).some((reason) => isMeant(method, reason))),
    );

    test('has every method that was called', () => {
      const called = outcomes.filter((outcome) => outcome.client === client).map(({ method }) => method);
      expect(called.filter((method) => !methods.includes(method))).toEqual([]);
      expect(called.length).toBeGreaterThan(120);
    });

    test.each(methods.filter((method) => !excused.has(method)))('%s', (method) => {
      const outcome = outcomes.find((one) => one.client === client && one.method === method);
      expect(outcome ?? 'it was not called, and no reason says why').toEqual({ client, method, problem: null });
    });
  });

  test('no area broke off for another reason than the answer of a method', () => {
    expect(brokenOff).toEqual([]);
  });

  test('no reason is for a method that is called, or that does not exist', () => {
    const reasons = Object.keys(listed.reasons);
    const methods = Object.values(listed.methods).flat();
    expect(outcomes.filter(({ method }) => reasons.some((reason) => isMeant(method, reason)))).toEqual([]);
    expect(reasons.filter((reason) => !methods.some((method) => isMeant(method, reason)))).toEqual([]);
  });
});
