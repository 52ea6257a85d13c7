import { readFile, rename } from 'node:fs/promises';
import path from 'node:path';
import pg from 'pg';
import { expect, inject, onTestFinished, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { createTestDatabase } from '#test/postgres.ts';
import { chatLines, createBatch, ended, resultsOf } from '../../api/batch-kit.ts';
import { prepareInstallation, sdk, sqlOn } from './installation.ts';

/** Copies the database of an installation, and puts the copy back. */
function prepareBackup(connectionString: string) {
  const { adminUrl } = inject('postgres');
  const name = new URL(connectionString).pathname.slice(1);
  const owner = pg.escapeIdentifier(decodeURIComponent(new URL(connectionString).username));
  onTestFinished(() => sqlOn(adminUrl, `drop database if exists ${name}_backup`).then(() => {}));
  return {
    /** What a dump has that was taken at this moment: jobs are claimed, and their workers are gone. */
    backUp: () => sqlOn(adminUrl, `create database ${name}_backup template ${name} owner ${owner}`),
    async putBack() {
      await sqlOn(adminUrl, `drop database ${name} with (force)`);
      await sqlOn(adminUrl, `create database ${name} template ${name}_backup owner ${owner}`);
    },
  };
}

test('a backup from the middle of a batch is put back, prepared, and goes on without losing a line', async () => {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  const installation = await prepareInstallation(database.connectionString);
  const backup = prepareBackup(database.connectionString);
  const { query, sluice } = installation;
  let client = await installation.start();
  const { id: keyId, key } = (await client.post('/api-keys', { body: { name: 'taken away later' } })) as {
    id: string;
    key: string;
  };
  const done = await ended(client, await createBatch(sdk, client, chatLines(5)));
  const lines = 600;
  const open = await createBatch(sdk, client, chatLines(lines, { model: '@simulator/sim-echo+150ms' }));
  await eventually(
    () => client.batches.retrieve(open.id),
    ({ request_counts: counts }) => (counts?.completed ?? 0) > 0,
    { intervalMs: 20 },
  );
  await installation.kill();
  await backup.backUp();

  // Goes on after the backup: a batch that it does not have, and a key that it has.
  client = await installation.start({ worker: false });
  const later = await createBatch(sdk, client, chatLines(3));
  await client.delete(`/api-keys/${keyId}`);
  // What a reader of the log read last.
  const { rows: lost } = await query('select event_id as id from event where stream_id = $1 limit 1', [later.id]);

  const refused = await sluice('restore');
  expect(refused).toMatchObject({ code: 1, stdout: '' });
  expect(refused.stderr).toMatch(/Stop all processes of Sluice first/);
  expect(refused.stderr).toMatch(/sluice-api from 127\.0\.0\.1, since/);
  expect(refused.stderr).toMatch(/sluice-queue-sender from 127\.0\.0\.1/);
  const survivor = installation.freeze();
  expect((await query('select max(epoch) as epoch from event_epoch')).rows).toEqual([{ epoch: 0 }]);

  await backup.putBack();
  const list = path.join(installation.environment['SLUICE_DATA_DIR'] ?? '', 'blobs.jsonl');
  const { code, stdout } = await sluice('restore', '--json', '--list', list);
  const first = JSON.parse(stdout);
  const { rows: settled } = await query('select completed from batch where id = $1', [open.id]);
  expect(code).toBe(0);
  expect(first).toMatchObject({
    ok: true,
    epoch: { epoch: 1, is_new: true },
    open: { batches: 1, lines: lines - settled[0].completed, overdue: 0 },
    jobs: { turns: 0, fine_tuning_jobs: 0, log_exports: 0 },
    // The input of the batch that the backup does not have.
    blobs: { missing: { blobs: 0 }, wrong_size: { blobs: 0 }, surplus: { blobs: 1 } },
    checks: [
      { check: 'records', ok: true },
      { check: 'digests', ok: true },
    ],
    survivors: [],
  });
  expect(first.jobs.held).toBeGreaterThan(0);
  const listed = (await readFile(list, 'utf8')).trimEnd().split('\n');
  expect(listed.map((line) => JSON.parse(line).problem)).toEqual(['surplus']);

  const { rows: recorded } = await query("select epoch, data from event where type = 'organisation.command_run'");
  expect(recorded).toMatchObject([
    { epoch: 1, data: { command: 'restore', result: { epoch: 1, adopted_blobs: false } } },
  ]);

  // What a dump without the schema of the queue leaves, and a store that has lost two blobs.
  await query('drop schema pgboss cascade');
  const { rows: files } = await query('select id, blob from file where id = any($1)', [
    [done.output_file_id, open.input_file_id],
  ]);
  for (const { blob } of files) await rename(installation.blobFile(blob), `${installation.blobFile(blob)}.away`);
  const second = await sluice('restore');
  expect(second).toMatchObject({ code: 1, stderr: '' });
  const said = second.stdout;
  expect(said).toMatch(/The last event is from .+ Changes after the backup are lost:/);
  expect(said).toContain('kept epoch 1 of the event log, which this command began before');
  expect(said).toContain('no job was missing from the queue');
  expect(said).toContain(`open batches that continue: 1. Their ${first.open.lines} lines without a result are called`);
  expect(said).toContain('Missing blobs: 2; with a wrong size: 0.');
  for (const { id, blob } of files) expect(said).toContain(`missing: ${blob} of file ${id}\n`);
  expect(said).toContain(
    `Open batches without a readable input file: 1. Restore the files, or cancel the batches: ${open.id}\n`,
  );
  for (const { blob } of files) await rename(`${installation.blobFile(blob)}.away`, installation.blobFile(blob));

  // Who has kept keys and leases of the time that is lost does not go on with them.
  survivor.signal('SIGCONT');
  expect(await survivor.ended).toBe(1);
  expect(
    survivor.said(
      'the database was restored from a backup while this process was running; the process must be restarted',
    ),
  ).toHaveLength(1);

  client = await installation.start();
  const finished = await ended(client, open);
  expect(finished).toMatchObject({
    status: 'completed',
    request_counts: { total: lines, completed: lines, failed: 0 },
  });
  const { customIds } = await resultsOf(client, finished);
  expect(customIds).toEqual(chatLines(lines).map((line) => line['custom_id']));
  expect((await resultsOf(client, done)).customIds).toHaveLength(5);
  await expect(client.batches.retrieve(later.id)).rejects.toMatchObject({ status: 404 });
  await expect(client.get(`/events?after=${lost[0].id}`)).rejects.toMatchObject({
    status: 400,
    message: expect.stringContaining('If the server was restored from a backup'),
  });
  // As the report says: the key works again.
  const again = new sdk.OpenAI({ apiKey: key, baseURL: client.baseURL });
  expect((await again.batches.retrieve(open.id)).id).toBe(open.id);
  expect((await sluice('check', 'records', 'digests', 'results')).code).toBe(0);
  const { rows: epochs } = await query(
    'select epoch, count(*)::int > 0 as any from event group by epoch order by epoch',
  );
  expect(epochs).toEqual([
    { epoch: 0, any: true },
    { epoch: 1, any: true },
  ]);
});
