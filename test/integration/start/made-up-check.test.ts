import { expect, onTestFinished, test, vi } from 'vitest';
import { Command } from 'commander';
import { addCheckCommand } from '#apps/cli/checks/check-command.ts';
import type { Check } from '#apps/cli/checks/check.ts';
import { checks } from '#apps/cli/checks/checks.ts';
import { useTestDatabase } from '#test/postgres.ts';

// A check is its entry in checks.ts. Here one is added as a developer would add it: no other file knows of it.

const database = useTestDatabase();

const epochs: Check = {
  name: 'epochs',
  summary: 'there is one epoch',
  canRepair: true,
  async run({ db }, { repair }) {
    const rows = await db.selectFrom('event_epoch').selectAll().execute();
    const state = repair ? 'repaired' : 'problem';
    return { counts: { epochs: rows.length }, findings: [{ state, subject: 'epoch 0', message: 'is made up' }] };
  },
};

const broken: Check = {
  name: 'broken',
  summary: 'never finishes',
  canRepair: false,
  run: () => Promise.reject(new Error('no luck')),
};

const program = (): Command => {
  const made = new Command('sluice');
  addCheckCommand(made, [...checks, broken, epochs]);
  return made;
};

/** What the command prints, and its exit code. */
async function sluice(...args: string[]): Promise<{ code: unknown; stdout: string }> {
  vi.stubEnv('DATABASE_URL', database.connectionString);
  const written: string[] = [];
  const write = vi.spyOn(process.stdout, 'write').mockImplementation((text) => written.push(String(text)) > 0);
  onTestFinished(() => {
    vi.unstubAllEnvs();
    process.exitCode = undefined;
  });
  process.exitCode = undefined;
  try {
    await program().parseAsync(args, { from: 'user' });
  } finally {
    write.mockRestore();
  }
  return { code: process.exitCode ?? 0, stdout: written.join('') };
}

test('a check of the list runs, is printed and decides the exit code', async () => {
  const failed = await sluice('check', 'epochs', 'digests');
  expect(failed).toEqual({
    code: 1,
    stdout: [
      'CHECK    RESULT  COMPARED',
      'digests  ok      -',
      'epochs   failed  epochs: 1',
      '',
      'problem  epochs: epoch 0: is made up',
      '',
    ].join('\n'),
  });
  const repaired = await sluice('check', 'epochs', '--repair', '--json');
  expect({ code: repaired.code, ...JSON.parse(repaired.stdout) }).toMatchObject({
    code: 0,
    check: 'epochs',
    ok: true,
    findings: [{ state: 'repaired', subject: 'epoch 0', message: 'is made up' }],
  });
});

test('the result of a check is an event, without the texts of its findings', async () => {
  await sluice('check', 'epochs', 'digests');
  const { rows } = await database.pool.query(
    "select data, metadata from event where type = 'organisation.command_run' order by position desc limit 1",
  );
  const none = { problems: [], repaired: [], omitted: 0 };
  expect(rows).toMatchObject([
    { data: { command: 'check', result: { ok: false } }, metadata: { actor: { type: 'system', id: 'cli' } } },
  ]);
  expect(rows[0].data.result.checks).toEqual([
    { check: 'digests', ok: true, counts: expect.objectContaining({ changed_events: 0 }), ...none },
    { check: 'epochs', ok: false, counts: { epochs: 1 }, ...none, problems: ['epoch 0'] },
  ]);
});

test('a result that cannot be recorded is printed, and the command fails', async () => {
  await database.pool.query(`
    create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$;
    create trigger refuse before insert on event for each row execute function refuse()`);
  onTestFinished(async () => void (await database.pool.query('drop function refuse cascade')));
  const { code, stdout } = await sluice('check', 'digests', '--json');
  expect({ code, ...JSON.parse(stdout) }).toMatchObject({ code: 1, check: 'digests', ok: true });
});

test('an error in one check is its problem, and the next one runs', async () => {
  const { code, stdout } = await sluice('check', 'broken', 'digests', '--json');
  expect(code).toBe(1);
  expect(
    stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line)),
  ).toMatchObject([
    { check: 'digests', ok: true },
    { check: 'broken', ok: false, findings: [{ subject: 'the check did not finish', message: 'no luck' }] },
  ]);
});

test('the help names it, and a name that is none is wrong usage', async () => {
  const { commands } = program();
  let help = '';
  commands[0]?.configureOutput({ writeOut: (text) => (help += text) }).outputHelp();
  expect(help).toContain('  epochs     there is one epoch (--repair)');
  const refused = program();
  for (const command of [refused, ...refused.commands]) command.exitOverride().configureOutput({ writeErr: () => {} });
  await expect(refused.parseAsync(['check', 'epoch'], { from: 'user' })).rejects.toMatchObject({
    code: 'commander.invalidArgument',
  });
});
