import { randomBytes } from 'node:crypto';
import { hostname, userInfo } from 'node:os';
import { expect, onTestFinished, test } from 'vitest';
import { createTestDatabase } from '#test/postgres.ts';
import { startApp } from './app-process.ts';
import { prepareInstallation } from './installation.ts';

test('without its master key an installation starts again with another one, once it was told to forget the lost one', async () => {
  const database = await createTestDatabase();
  onTestFinished(() => database.drop());
  const { environment, start, kill, sluice, query } = await prepareInstallation(database.connectionString);
  let client = await start({ worker: false });
  const ask = () =>
    client.chat.completions.create({ model: '@simulator/sim-small', messages: [{ role: 'user', content: 'Hi' }] });
  await ask();
  const refused = await sluice('keys', 'forget-master');
  expect(refused).toMatchObject({
    code: 1,
    stdout: '',
    stderr: expect.stringMatching(/Stop all processes.*sluice-api/s),
  });
  await kill();

  environment['SLUICE_MASTER_KEY'] = randomBytes(32).toString('base64');
  expect(await startApp('api', environment).ended).toBe(1);
  const forgotten = await sluice('keys', 'forget-master');
  expect(forgotten).toMatchObject({ code: 0, stderr: '' });
  expect(forgotten.stdout).toMatch(/^the next process .*\n {2}1 secrets need the lost key [0-9a-f]{16};/);
  expect((await sluice('subscribers', 'list')).code).toBe(0);
  expect((await sluice('check', 'records', '--repair')).code).toBe(0);
  expect((await sluice('subscribers', 'rebuild', 'activity')).code).toBe(0);
  // Changes and results of checks are events; other commands are not.
  const { rows } = await query(
    "select data, metadata from event where type = 'organisation.command_run' order by position",
  );
  expect(rows).toMatchObject([
    {
      data: { command: 'keys forget-master', result: { unreadable: expect.any(Object) } },
      metadata: { actor: { type: 'system', id: 'cli', user: userInfo().username, host: hostname() } },
    },
    { data: { command: 'check', result: { ok: true, checks: [{ check: 'records', ok: true, problems: [] }] } } },
    { data: { command: 'subscribers rebuild', result: { name: 'activity', events: expect.any(Number) } } },
  ]);

  client = await start({ worker: false });
  await expect(ask()).rejects.toMatchObject({ status: 503, code: 'virtual_key_unreadable' });
  await client.put('/virtual-keys/simulator', { body: { key: 'sk-stored-again' } });
  expect((await ask()).object).toBe('chat.completion');
  await kill();
});
