import { execFile } from 'node:child_process';
import { rm } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { removeEmbeddedPostgres } from '#libs/database/embedded/start-embedded-postgres.ts';
import { makeDatabaseFolder } from '#test/database-folder.ts';
import { npmStart, standaloneEnvironment, type NpmStart } from './npm-start.ts';

// The commands of docs/tour.md, as docs/tour.sh (`npm run tour`) runs them, against `npm start` in a directory of its own.

let folder = '';
let platform: NpmStart;

beforeAll(async () => {
  folder = await makeDatabaseFolder('sluice-tour-');
  platform = await npmStart(standaloneEnvironment(path.join(folder, '.data')));
});

afterAll(async () => {
  platform.signal('SIGTERM');
  await platform.ended;
  await removeEmbeddedPostgres(path.join(folder, '.data'));
  await rm(folder, { recursive: true, force: true, maxRetries: 5 });
});

/** What the commands below each heading of the page have printed. */
async function runPage(): Promise<Map<string, string>> {
  const script = path.resolve(import.meta.dirname, '../../../docs/tour.sh');
  const { stdout, stderr } = await promisify(execFile)('bash', [script], {
    cwd: folder,
    env: { ...process.env, SLUICE: platform.baseUrl },
    timeout: 120_000,
  });
  expect(stderr).toBe('');
  const printed = stdout.split(/^## /m).slice(1);
  return new Map(printed.map((text): [string, string] => [text.slice(0, text.indexOf('\n')), text]));
}

/** The members of the JSON texts among the lines that a section has printed. */
const answers = (printed: string | undefined): Record<string, unknown>[] =>
  (printed ?? '')
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as Record<string, unknown>);

test('the tour goes from a team, a budget and a prompt to who spent what', { timeout: 180_000 }, async () => {
  const printed = await runPage();
  expect([...printed.values()].filter((text) => text.includes('invalid_request_error'))).toEqual([]);
  expect(answers(printed.get('A team'))).toMatchObject([{ slug: 'support' }, { slug: 'simulator', status: 'active' }]);
  expect(answers(printed.get('A person'))).toMatchObject([{ data: [{ email: 'ada@example.com' }, { role: 'owner' }] }]);
  expect(answers(printed.get('A prompt'))).toMatchObject([{ slug: 'reply' }, { object: 'chat.completion' }]);
  expect(printed.get('A budget')).toContain('answered\n');
  const [refused, entities] = answers(printed.get('A budget'));
  expect(refused).toMatchObject({ error: { message: expect.stringMatching(/0\.1 US cents: 0\.0\d+ are used/) } });
  expect(entities).toMatchObject({ total: 1, data: [{ current_usage: expect.any(Number) }] });
  const [, batch, error] = answers(printed.get('A batch within the budget'));
  const { completed, failed } = Object(batch?.['request_counts']) as { completed: number; failed: number };
  expect([completed > 0, failed > 0, completed + failed]).toEqual([true, true, 20]);
  expect(error).toMatchObject({ response: null, error: { code: 'usage_limit_exceeded' } });
  expect(answers(printed.get('Feedback'))).toMatchObject([{ status: 'success' }]);
  const [users, keys] = answers(printed.get('Who spent what?'));
  expect(users).toMatchObject({ data: [{ user: 'ada@example.com' }] });
  const [{ cost } = { cost: 0 }] = Object(keys?.['data']) as { cost: number }[];
  // What the batch has cost, and the live calls before it, all of which the budget bounds but for the first.
  expect(cost).toBeGreaterThan(100 * Number(batch?.['cost_usd']));
  expect(cost).toBeLessThan(0.25);
  const [logs, audit] = answers(printed.get('What happened?'));
  expect(logs).toMatchObject({
    data: [{ prompt_slug: 'reply', metadata: { _user: 'ada@example.com' }, cost_usd: expect.any(String) }],
  });
  expect(audit?.['total']).toBeGreaterThan(5);
  expect(answers(printed.get('Clean up'))).toMatchObject([{ deleted: true }, { deleted: true }]);
});
