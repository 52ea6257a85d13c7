import { Command } from 'commander';
import { createLogger } from '#libs/kernel/logger.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { migrate } from '#libs/database/migrate.ts';
import { openDatabaseUrl } from './database-url.ts';
import { describeCheck, rebuild } from './rebuild.ts';

// stdout is for results, stderr for progress and problems; exit codes: 0 ok, 1 failed or different, 2 wrong usage.
const logger = createLogger({ name: 'cli', level: 'warn' });

const program = new Command('sluice').description('Sluice on the command line').showHelpAfterError();

program
  .command('migrate')
  .description('bring the database to the newest migration')
  .action(async () => {
    await withDatabase(async (connectionString) => {
      const applied = await migrate({ connectionString, logger });
      console.log(applied.length === 0 ? 'nothing to do' : `applied: ${applied.join(', ')}`);
    });
  });

program
  .command('rebuild')
  .description('fold the event log into the read models')
  .option('--check', 'only compare: say equal, or name the first difference and exit 1')
  .action(async ({ check = false }: { check?: boolean }) => {
    await withDatabase(async (connectionString) => {
      const onProgress = (events: number): void => {
        if (process.stderr.isTTY) process.stderr.write(`\r${events} events`);
      };
      const report = await rebuild({ connectionString, check, onProgress }, logger);
      if (process.stderr.isTTY) process.stderr.write('\r\u001b[K');
      for (const line of describeCheck(report, check)) console.log(line);
      if (check && report.difference !== null) process.exitCode = 1;
    });
  });

async function withDatabase(work: (connectionString: string) => Promise<void>): Promise<void> {
  const { url, close } = await openDatabaseUrl(logger);
  try {
    await work(url);
  } finally {
    await close();
  }
}

try {
  await program.parseAsync();
} catch (error) {
  console.error(error instanceof ConfigurationError ? error.message : error);
  process.exitCode = 1;
}
