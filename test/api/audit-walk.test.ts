import { execFile } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { sealCalls } from '#libs/request-log/seal/seal-calls.ts';
import { readCommands } from '#test/page-commands.ts';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, chatLines, runBatch } from './batch-kit.ts';
import { asker, join, type Ask } from './people-kit.ts';
import { sdks, type Sdk } from './sdk.ts';

// The commands of docs/audit-walk.md, word by word, except how they start the programs of this project.

const project = path.resolve(import.meta.dirname, '../..');
const email = 'budget.owner@example.net';

let platform: TestPlatform;
let ask: Ask;
let folder: string;
beforeAll(async () => {
  platform = await startPlatform();
  ask = asker(platform);
  folder = await mkdtemp(path.join(tmpdir(), 'sluice-walk-'));
});
afterAll(async () => {
  await platform?.stop();
  await rm(folder, { recursive: true, force: true });
});

/** A manager raises a budget. Resolves when the change is in the audit log. */
async function changeBudget(): Promise<void> {
  const [workspace] = (await ask('GET', '/admin/workspaces')).body.data as unknown as { id: string }[];
  const { id, key } = await join(ask, {
    email,
    workspaces: [{ id: workspace?.id ?? '', role: 'manager' }],
    scopes: ['policies.write', 'policies.read'],
  });
  await ask('PUT', `/admin/users/${id}`, { first_name: 'Budgetina' });
  const budget = { name: 'Team', type: 'cost', credit_limit: 10, conditions: [], group_by: [] };
  const made = await ask('POST', '/policies/usage-limits', budget);
  expect(await ask('PUT', `/policies/usage-limits/${made.body['id']}`, { credit_limit: 250 }, key)).toMatchObject({
    status: 200,
  });
  await eventually(
    async () => (await ask('GET', `/audit-logs?resource_id=${made.body['id']}`)).body.records,
    (records) => records.length === 2,
  );
}

async function untilSealed(): Promise<void> {
  const { rows } = await platform.database.pool.query<{ count: number }>('select count(*)::int as count from event');
  const size = async (): Promise<number> => {
    const answer = await fetch(`${platform.baseUrl}/audit/checkpoint`, {
      headers: { authorization: `Bearer ${platform.adminKey}` },
    });
    return Number((await answer.text()).split('\n')[1]);
  };
  await eventually(size, (sealed) => sealed >= (rows[0]?.count ?? 0));
}

/** Runs a batch and a call, and seals the call. */
async function callModels(): Promise<void> {
  const [sdk] = sdks as [Sdk];
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  await runBatch(sdk, client, chatLines(20));
  const { body } = chatLine('hello');
  await client.chat.completions.create(body as never);
  const { db } = platform.database;
  const [eventLog, logger] = [createEventLog(db), createLogger({ name: 'test', level: 'silent' })];
  // The worker can be faster: it seals all calls once in every ten minutes of the clock.
  const isSealed = db.selectFrom('event').select('event_id').where('type', '=', 'request_log.calls_sealed');
  await eventually(
    async () => {
      await sealCalls({ db, eventLog, logger });
      return await isSealed.execute();
    },
    (seals) => seals.length > 0,
  );
}

/** Returns what the commands below each heading of the page printed. */
async function runPage(): Promise<Map<string, string>> {
  const commands = [...readCommands('docs/audit-walk.md')].map(([heading, blocks]) =>
    [`echo '## ${heading}'`, ...blocks].join('\n'),
  );
  const script = commands
    .join('\n')
    .replaceAll('npm run --silent sluice --', `'${process.execPath}' '${project}/apps/cli/main.ts'`)
    .replaceAll(/\bnode (?=apps\/)/g, `'${process.execPath}' ${project}/`)
    .replaceAll(/^node /gm, `'${process.execPath}' `);
  const today = new Date().toISOString().slice(0, 10);
  const env = {
    ...process.env,
    ...platform.environment,
    SLUICE: platform.baseUrl,
    ADMIN: platform.adminKey,
    DAY: today,
    FROM: '2020-01-01T00:00:00Z',
    TO: '2100-01-01T00:00:00Z',
  };
  const output = await new Promise<{ code: unknown; stdout: string; stderr: string }>((resolve) => {
    execFile('bash', ['-uc', script], { cwd: folder, env }, (error, stdout, stderr) =>
      resolve({ code: error?.code ?? 0, stdout, stderr }),
    );
  });
  expect(output).toMatchObject({ code: 0, stderr: '' });
  const sections = output.stdout.split(/^## /m).slice(1);
  return new Map(sections.map((text): [string, string] => [text.slice(0, text.indexOf('\n')), text]));
}

const answers = (printed: string | undefined): Record<string, unknown>[] =>
  (printed ?? '')
    .split('\n')
    .filter((line) => line.startsWith('{'))
    .map((line) => JSON.parse(line) as Record<string, unknown>);

test('the page names the person, the value before, proofs and an export that stay right after the erasure', async () => {
  await callModels();
  await changeBudget();
  await untilSealed();
  const printed = await runPage();
  const [changes, events] = answers(printed.get('Who changed the budget?'));
  expect(changes).toMatchObject({ records: [{ action: 'updated', client_ip: '127.0.0.1', user_type: 'api_key' }] });
  expect(events).toMatchObject({
    data: [{ metadata: { actor: { principal: { type: 'user', id: expect.stringMatching(/^user_/) } } } }],
  });
  const [before, change] = answers(printed.get('What was it before?'));
  expect(before).toMatchObject({ version: 1, state: { credit_limit: '10' } });
  expect(change?.['patch']).toContainEqual({ op: 'replace', path: '/credit_limit', value: '250' });
  expect(printed.get('Prove this event')).toMatch(/OK: event \S+ is entry \d+ of tree 1\./);
  expect(printed.get('Prove line 17')).toMatch(
    /OK: line 17 of batch_.*\nThe input: .*line-17.*\nThe result: .*line-17/,
  );
  expect(printed.get('Prove a call')).toMatch(/OK: call log_\S+ is record 1 of 1 of the seal\./);
  expect(printed.get('Export the quarter')).toMatch(/OK: \d+ events, \d+ entries[^]*OK: 1 calls of 1 seals\./);
  const erased = answers(printed.get('Erase this person'));
  expect(erased.at(-1)).toMatchObject({
    records: [{ action: 'updated', client_ip: null }, { action: 'created' }],
  });
  expect(printed.get('Verify again')?.match(/^OK: (?:event|\d+ events)/gm)).toHaveLength(3);
  const read = async (name: string): Promise<string> =>
    await readFile(path.join(folder, name, 'events.ndjson'), 'utf8');
  expect(await read('audit-quarter')).toContain(email);
  expect(await read('audit-after-erasure')).not.toContain(email);
});
