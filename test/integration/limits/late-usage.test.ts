import { sql } from 'kysely';
import { expect, test } from 'vitest';
import type { AdmissionRequest, Spent } from '#libs/calls/admission.ts';
import type { Attempt } from '#libs/calls/call.ts';
import { amountToNumber, wholeAmount } from '#libs/kernel/amount.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createLateUsage, sweepLateUsage } from '#libs/policies/late-usage.ts';
import { createUsedAmounts } from '#libs/policies/used-amounts.ts';
import type { Usage } from '#libs/prices/usage.ts';
import { useTestDatabase } from '#test/postgres.ts';

const database = useTestDatabase();

/** One cent for each token. */
const pricing = {
  priceOf: (_buyer: unknown, { usage }: { usage: Usage | null }) =>
    usage === null ? null : { cents: wholeAmount(usage.inputTokens + usage.outputTokens), version: 'test' },
};
const startProcess = () => {
  const lateUsage = createLateUsage({ db: database.db, logger: createLogger({ name: 'test', level: 'silent' }) });
  return { lateUsage, amounts: createUsedAmounts(pricing, lateUsage) };
};

const requestOf = (work: 'call' | 'none', workspaceId: string): AdmissionRequest => ({
  workspaceId,
  keyId: null,
  target: { provider: 'openai', label: 'openai' },
  model: null,
  operation: 'threads',
  work,
  metadata: null,
  config: null,
  prompt: null,
  waitsForBudget: false,
  estimate: () => ({ inputTokens: 100, outputTokensMax: 50, choices: 1 }),
  otherModels: () => ({ names: [], chooses: null }),
});
const ok: Attempt = { startedAt: 0, durationMs: 0, status: 200, errorCode: null };
const answered = (usage: [number, number] | null): Spent => ({
  usage: usage && { inputTokens: usage[0], outputTokens: usage[1], cachedTokens: 0, reasoningTokens: 0 },
  attempts: [ok],
  status: 200,
  model: 'm',
  objectId: 'run_1',
});

async function counted(
  { amounts }: ReturnType<typeof startProcess>,
  work: 'call' | 'none',
  usage: [number, number] | null,
  workspaceId = 'ws_1',
): Promise<number | undefined> {
  const request = requestOf(work, workspaceId);
  const used = amounts.used('tokens', request, await amounts.learn(request, answered(usage)));
  return used === null ? undefined : amountToNumber(used.amount);
}

const rows = () => database.db.selectFrom('late_usage').selectAll().execute();

test('the usage of a run is counted by the process that reads it first, and only once', async () => {
  const [first, second, third] = [startProcess(), startProcess(), startProcess()];
  expect(await counted(first, 'call', null)).toBe(150);
  await expect.poll(rows).toMatchObject([{ input_tokens: 100, output_tokens: 50 }]);
  expect(await counted(second, 'none', null)).toBe(0);
  expect(await counted(second, 'none', [1_000, 60], 'ws_2')).toBe(0);
  const reads = await Promise.all([first, second, third].map((process) => counted(process, 'none', [1_000, 60])));
  expect(reads.filter((amount) => amount !== 0)).toEqual([910]);
  expect(await rows()).toEqual([]);
});

test('a run that continues with the results of its tools counts its whole usage once', async () => {
  const [first, second] = [startProcess(), startProcess()];
  expect(await counted(first, 'call', null)).toBe(150);
  expect(await counted(first, 'call', null)).toBe(150);
  await expect.poll(rows).toMatchObject([{ input_tokens: 200, output_tokens: 100 }]);
  expect(await counted(second, 'call', [1_000, 160])).toBe(860);
  expect(await counted(first, 'none', [1_000, 160])).toBe(0);
});

test('a client that reads its run immediately does not overtake the row', async () => {
  const { lateUsage } = startProcess();
  void lateUsage.record('ws_1', 'run_2', { inputTokens: 1, outputTokens: 2 });
  expect(await lateUsage.take('ws_1', 'run_2')).toEqual({ inputTokens: 1, outputTokens: 2 });
});

test('old objects and the oldest of too many are forgotten, and IDs that no path can name are not recorded', async () => {
  const { lateUsage } = startProcess();
  const tokens = { inputTokens: 1, outputTokens: 2 };
  for (const id of ['a', 'b', 'c', 'old', 'x/y', 'x'.repeat(201)]) await lateUsage.record('ws_1', id, tokens);
  await lateUsage.record('ws_2', 'd', tokens);
  await sql`update late_usage set created_at = now() - interval '41 days' where object_id = 'old'`.execute(database.db);
  await sql`update late_usage set created_at = now() - interval '1 day' where object_id in ('a', 'd')`.execute(
    database.db,
  );
  await sweepLateUsage(database.db, 2);
  expect((await rows()).map(({ object_id: id }) => id).toSorted()).toEqual(['b', 'c', 'd']);
});
