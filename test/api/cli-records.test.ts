import { randomUUID } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { recordKindOf, recordKinds } from '#apps/cli/records/record-kinds.ts';
import { resourceKinds } from '#libs/resources/resource-kinds.ts';
import { eventually } from '#test/eventually.ts';
import { startKillableApi } from './api-process.ts';
import { createWorkspace } from './second-workspace.ts';
import { stable, setUp } from './cli-kit.ts';

// Records, logs, events and usage on the command line.

const at = setUp();

const json = async (...args: string[]): Promise<Record<string, unknown>[]> => {
  const ended = await at.cli.run(args);
  expect(ended).toMatchObject({ code: 0 });
  return ended.stdout
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, unknown>);
};

test('the command line knows every kind of record that the server has', () => {
  expect(recordKinds).toEqual(resourceKinds.map(recordKindOf));
});

test('every kind can be listed', async () => {
  for (const { command } of recordKinds) expect(await at.cli.run([command, 'list'])).toMatchObject({ code: 0 });
});

test('a record is created from YAML or --set, listed, changed and deleted', async () => {
  await writeFile(
    path.join(at.cli.folder, 'config.yaml'),
    'name: Twice\nslug: twice\nconfig:\n  virtual_key: simulator\n  retry: {attempts: 2}\n',
  );
  const [made] = await json('configs', 'create', '-f', 'config.yaml');
  expect(made).toMatchObject({ slug: 'twice' });
  const table = await at.cli.run(['configs', 'list', '--table']);
  expect(stable(table.stdout, at.platform)).toBe('SLUG   STATUS  CREATED           NAME\ntwice  active  TIME  Twice\n');
  await json('configs', 'update', 'twice', '--set', 'name=Renamed', '--set', 'config={"virtual_key":"simulator"}');
  const [changed] = await json('configs', 'get', 'twice');
  expect(changed).toMatchObject({ name: 'Renamed', config: { virtual_key: 'simulator' } });
  expect(await at.cli.run(['configs', 'delete', 'twice'])).toMatchObject({ code: 0, stderr: 'twice deleted\n' });
  const gone = await at.cli.run(['configs', 'get', 'twice']);
  expect(gone.code).toBe(1);
  expect(stable(gone.stderr, at.platform)).toMatch(
    /^error: .*\n {2}HTTP 404, (?:code \w+, )?request .*\n {2}To list all: sluice configs list\n/,
  );
  const empty = await at.cli.run(['configs', 'create']);
  expect([empty.code, empty.stderr]).toEqual([
    2,
    'error: The command needs the members of the record: -f FILE, or --set name=value.\n',
  ]);
});

test('a key is shown when it is created, and never again', async () => {
  const [made] = await json('keys', 'create', '--set', 'name=ci', '--set', 'scopes=["logs.read"]');
  const value = String(made?.['key']);
  const who = await at.cli.run(['whoami'], { env: { SLUICE_API_KEY: value } });
  expect(JSON.parse(who.stdout)).toMatchObject({ scopes: 'logs.read' });
  const refused = await at.cli.run(['configs', 'list'], { env: { SLUICE_API_KEY: value } });
  expect([refused.code, refused.stderr]).toEqual([
    1,
    expect.stringMatching(/HTTP 403[^]*To see what your key can do, run sluice whoami/),
  ]);
  expect((await at.cli.run(['keys', 'list'])).stdout).not.toContain(value);
});

test('calls are searched, shown, followed and exported, and usage says who spent what', async () => {
  const call = async (text: string): Promise<void> => {
    const response = await fetch(`${at.platform.baseUrl}/chat/completions`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${at.platform.adminKey}`,
        'content-type': 'application/json',
        'x-gateway-metadata': '{"team":"search"}',
      },
      body: JSON.stringify({ model: '@simulator/sim-small', messages: [{ role: 'user', content: text }] }),
    });
    expect(response.status).toBe(200);
    await response.text();
  };
  await call('One');
  const found = await eventually(
    () => json('logs', 'search', '--model', 'sim-small', '--since', '1h', '--metadata', 'team=search'),
    (logs) => logs.length > 0,
  );
  const [log] = await json('logs', 'get', String(found[0]?.['id']));
  expect(log).toMatchObject({ status: 200, metadata: { team: 'search' } });

  let followed = '';
  const tail = await at.cli.run(['logs', 'tail'], {
    onStart: (child) => {
      child.stdout?.on('data', (text: string) => {
        followed += text;
        if (followed.includes('\n')) child.kill('SIGINT');
      });
      void eventually(
        async () => {
          if (child.exitCode === null) await call('Two');
          return followed;
        },
        (text) => text.includes('\n') || child.exitCode !== null,
        { intervalMs: 500 },
      );
    },
  });
  expect(tail.code).toBe(130);
  expect(JSON.parse(followed.split('\n')[0] ?? '')).toMatchObject({ object: 'log', status: 200 });

  expect(await at.cli.run(['logs', 'export', '--since', '1h', '-o', 'logs.jsonl'])).toMatchObject({ code: 0 });
  const exported = (await readFile(path.join(at.cli.folder, 'logs.jsonl'), 'utf8')).trimEnd().split('\n');
  expect(exported.length).toBeGreaterThanOrEqual(2);

  const spent = await eventually(
    () => json('usage', '--since', '1h'),
    (groups) => groups.length > 0,
    { timeoutMs: 40_000, intervalMs: 1_000 },
  );
  expect(spent[0]).toMatchObject({ ai_model: 'sim-small' });
  const table = await at.cli.run(['usage', '--by', 'metadata:team', '--table']);
  expect(table.stdout).toMatch(/^CALLS +TOKENS +COST +METADATA:TEAM\n *\d+ +\d+ +\$[\d.]+ simulated +search\n/);
  expect(await at.cli.run(['usage', '--by', 'colour'])).toMatchObject({ code: 2 });
});

test('the story of a record is there as it happened, and events are followed', async () => {
  const [made] = await json('labels', 'create', '--set', 'name=urgent');
  const id = String(made?.['id']);
  // Events are listed when all transactions that began before them have ended, also those of other tests.
  const story = await eventually(
    () => json('events', 'show', id),
    ({ length }) => length > 0,
  );
  expect(story.map(({ type }) => type)).toEqual(['label.created']);
  let followed = '';
  const tail = await at.cli.run(['events', 'tail', '--after', String(story[0]?.['id']), '--record', id], {
    onStart: (child) => {
      child.stdout?.on('data', (text: string) => {
        followed += text;
        child.kill('SIGINT');
      });
      void at.cli.run(['labels', 'update', id, '--set', 'name=later']);
    },
  });
  expect(tail.code).toBe(130);
  expect(JSON.parse(followed)).toMatchObject({ type: 'label.updated', stream: id });
  const listed = await json('events', 'list', '--record', id, '--limit', '1');
  expect(listed).toHaveLength(1);
});

test('Ctrl-C that is held down ends a command as one Ctrl-C does', async () => {
  const [made] = await json('labels', 'create', '--set', `name=held-${randomUUID().slice(0, 8)}`);
  const id = String(made?.['id']);
  const [first] = await json('events', 'show', id);
  await json('labels', 'update', id, '--set', 'description=down');
  const { code, stdout } = await at.cli.run(['events', 'tail', '--after', String(first?.['id']), '--record', id], {
    onStart: (child) =>
      child.stdout?.once('data', () => {
        const key = setInterval(() => child.kill('SIGINT'), 1);
        child.once('exit', () => clearInterval(key));
      }),
  });
  expect([code, stdout.trimEnd().split('\n').length]).toEqual([130, 1]);
});

test('a record is shown as it was at any moment, and only to its workspace', async () => {
  const [made] = await json('labels', 'create', '--set', 'name=first');
  const id = String(made?.['id']);
  const between = new Date().toISOString();
  await json('labels', 'update', id, '--set', 'description=second');
  await json('labels', 'delete', id);
  const replay = async (...args: string[]) => (await json('events', 'replay', id, ...args))[0];
  const first = { stream: id, version: 1, is_newest: false, state: { name: 'first', deleted_at: null } };
  expect(await replay('--version', '1')).toMatchObject({ ...first, event: { type: 'label.created' } });
  expect(await replay('--at', between)).toMatchObject(first);
  expect(await replay('--version', '2')).toMatchObject({ state: { name: 'first', description: 'second' } });
  expect(await replay()).toMatchObject({ version: 3, is_newest: true, state: { deleted_at: expect.any(String) } });
  expect(await at.cli.run(['events', 'replay', id, '--at', '1d'])).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('did not exist at that moment'),
  });
  const other = await createWorkspace(at.platform);
  const foreign = await at.cli.run(['events', 'replay', id], { env: { SLUICE_API_KEY: other } });
  expect(foreign).toMatchObject({ code: 1, stderr: expect.stringContaining('did not exist') });
  // What an event of a key has of its value is in no answer.
  const [key] = await json('keys', 'create', '--set', 'name=replayed', '--set', 'scopes=["models.read"]');
  const state = JSON.stringify((await json('events', 'replay', String(key?.['id'])))[0]);
  expect(state).toContain('replayed');
  expect(state).not.toContain('digest');
});

test('what is followed goes on when the server was away, and says what was missed', async () => {
  const api = await startKillableApi(at.platform);
  onTestFinished(api.kill);
  const [label] = await json('labels', 'create', '--set', 'name=followed');
  const id = String(label?.['id']);
  const [first] = await json('events', 'show', id);
  type Followed = { stdout: string; stderr: string; ended: Promise<unknown>; stop: () => void };
  const follow = (...args: string[]): Followed => {
    const followed: Followed = { stdout: '', stderr: '', ended: Promise.resolve(), stop: () => undefined };
    followed.ended = at.cli.run([...args, '--server', new URL(api.baseUrl).origin], {
      onStart: (child) => {
        child.stdout?.on('data', (text: string) => (followed.stdout += text));
        child.stderr?.on('data', (text: string) => (followed.stderr += text));
        followed.stop = () => void child.kill('SIGINT');
      },
    });
    return followed;
  };
  const events = follow('events', 'tail', '--record', id, '--after', String(first?.['id']));
  const logs = follow('logs', 'tail');
  const seen = (followed: Followed, name: 'stdout' | 'stderr', text: string) =>
    eventually(
      () => followed[name],
      (all) => all.includes(text),
    );
  const change = (description: string) => at.cli.run(['labels', 'update', id, '--set', `description=${description}`]);
  const call = async (traceId: string): Promise<void> => {
    const response = await fetch(`${at.platform.baseUrl}/chat/completions`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${at.platform.adminKey}`,
        'content-type': 'application/json',
        'x-gateway-trace-id': traceId,
      },
      body: JSON.stringify({ model: '@simulator/sim-small', messages: [{ role: 'user', content: 'Hello' }] }),
    });
    await response.text();
  };
  await change('before');
  await seen(events, 'stdout', 'before');
  await eventually(
    async () => {
      await call('trace-before');
      return logs.stdout;
    },
    (text) => text.includes('trace-before'),
    { intervalMs: 300 },
  );
  await api.kill();
  await seen(events, 'stderr', 'The server is unavailable');
  await seen(logs, 'stderr', 'The server is unavailable');
  await change('meanwhile');
  await call('trace-meanwhile');
  const again = await startKillableApi(at.platform, { PORT: new URL(api.baseUrl).port });
  onTestFinished(again.kill);
  await seen(events, 'stdout', 'meanwhile');
  await seen(logs, 'stdout', 'trace-meanwhile');
  for (const followed of [events, logs]) {
    expect(followed.stderr).toMatch(/The server is available again; no (?:call|event) was missed\./);
    followed.stop();
    await followed.ended;
  }
  // Each once: "description" is in the data of the event alone.
  expect(events.stdout.match(/"description":"(before|meanwhile)"/g)).toHaveLength(2);
});
