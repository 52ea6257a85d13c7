import { execFile } from 'node:child_process';
import { chmod, readFile, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { expect, test } from 'vitest';
import { startPlatform } from '#test/platform.ts';
import { chatLine, chatLines, createBatch, ended } from './batch-kit.ts';
import { sdks, type Sdk } from './sdk.ts';

const sdk = sdks[0] as Sdk;
const folder = path.join(import.meta.dirname, '../..');

test('the files of a batch are checked against the roots in its events', async ({ onTestFinished }) => {
  const platform = await startPlatform();
  onTestFinished(() => platform.stop());
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const wrong = chatLine('wrong', { model: '@simulator/sim-fault-400' });
  const batch = await ended(
    client,
    await createBatch(sdk, client, [...chatLines(70), wrong, ...chatLines(150).slice(70)]),
  );
  expect(batch.request_counts).toMatchObject({ completed: 150, failed: 1 });
  const check = async () =>
    await new Promise<{ code: unknown; stdout: string; stderr: string }>((resolve) => {
      const env = { ...process.env, ...platform.environment };
      const args = ['apps/cli/main.ts', 'check', 'results', '--json'];
      execFile(process.execPath, args, { cwd: folder, env }, (error, stdout, stderr) =>
        resolve({ code: error?.code ?? 0, stdout, stderr }),
      );
    });
  const checked = await check();
  expect({ code: checked.code, ...JSON.parse(checked.stdout) }).toEqual({
    code: 0,
    check: 'results',
    ok: true,
    counts: { batches: 1, lines: 151, events: expect.any(Number) },
    findings: [],
    omitted: 0,
    duration_ms: expect.any(Number),
  });
  expect(JSON.parse(checked.stdout).counts.events).toBeGreaterThan(0);

  const { rows } = await platform.database.pool.query('select blob from file where id = $1', [batch.output_file_id]);
  const blob = String(rows[0].blob);
  const file = path.join(platform.dataDir, 'blobs', blob.slice(0, 2), blob.slice(2, 4), blob);
  const bytes = await readFile(file);
  await chmod(file, 0o600);
  const changed = Buffer.from(bytes);
  const at = changed.indexOf('"role"');
  changed[at + 1] = 0x52;
  await writeFile(file, changed);
  const altered = await check();
  expect(altered.code).toBe(1);
  expect(JSON.parse(altered.stdout).findings).toEqual([
    {
      state: 'problem',
      subject: batch.id,
      message: expect.stringMatching(/^event \d+: results_root does not match its lines, of which 1 is the first$/),
    },
  ]);

  await writeFile(file, bytes.subarray(bytes.indexOf(0x0a) + 1));
  const shortened = await check();
  expect(JSON.parse(shortened.stdout).findings[0].message).toBe('line 1 is missing from both files, or out of order');
  expect(shortened.code).toBe(1);

  await rm(file);
  const lost = await check();
  expect(JSON.parse(lost.stdout).findings[0].message).toBe('a result file has lost its content');
  expect(lost.code).toBe(1);

  await client.files.delete(batch.output_file_id ?? '');
  const deleted = await check();
  expect(JSON.parse(deleted.stdout)).toMatchObject({ ok: true, counts: { batches: 0 } });
});
