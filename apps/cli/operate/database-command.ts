import { getPriority, setPriority } from 'node:os';
import type { Command } from 'commander';
import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import type { Database } from '#libs/database/schema.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { print, toJson } from '../terminal/output.ts';

/** The niceness of maintenance. An ordinary user can only raise it. */
const lowPriority = 10;

// Maintenance commands use the database. They load their code when they run, so that commands that only use HTTP start
// quickly.

/**
 * The output of a command: `text` lines or, with `--json`, `json` values; strings among these are already JSON. If `ok` is
 * false, the command exits with status 1.
 */
export type Outcome = { text: readonly string[]; json: readonly unknown[]; ok?: boolean };
/** `recorded`: what the event of the command contains: a change that belongs to no record, or the result of checks. */
type DatabaseOutcome = Outcome & { recorded?: Record<string, unknown> | undefined };

type Work<Options> = {
  args: readonly string[];
  options: Options;
  connectionString: string;
  logger: Logger;
  onProgress: (text: string) => void;
};
type DatabaseWork<Options> = Work<Options> & { pool: Pool; db: Kysely<Database>; applicationName: string };

type Texts = { description: string; json: string };

const toLine = (value: unknown): string => (typeof value === 'string' ? value : toJson(value));

/** Adds a command that works on the migrated database. It sets no time limits, because it can read whole tables. */
export function databaseCommand<Options = object>(
  parent: Command,
  usage: string,
  texts: Texts,
  run: (work: DatabaseWork<Options>) => Promise<DatabaseOutcome>,
): Command {
  const isTopLevel = parent.parent === null;
  const [verb = ''] = usage.split(' ');
  const name = isTopLevel ? verb : parent.name();
  return operatorCommand<Options>(parent, usage, texts, async (work) => {
    const { withMigratedPool } = await import('./migrated-pool.ts');
    const { createDatabase } = await import('#libs/database/pool.ts');
    const { connectionString, logger } = work;
    const applicationName = `sluice-${name}`;
    return await withMigratedPool({ connectionString, applicationName }, logger, async (pool) => {
      const db = createDatabase(pool);
      const outcome = await run({ ...work, pool, db, applicationName });
      if (outcome.recorded === undefined) return outcome;
      const { recordCommand } = await import('./operator-metadata.ts');
      try {
        await recordCommand(db, isTopLevel ? verb : `${name} ${verb}`, outcome.recorded);
        return outcome;
      } catch (error) {
        // The result is printed nevertheless. A check can have found that the log is damaged.
        logger.error({ err: error }, 'the result could not be recorded in the event log');
        return { ...outcome, ok: false };
      }
    });
  });
}

/** Adds a command that opens the database itself. With `mayCreate`, an embedded database is created if none exists. */
export function operatorCommand<Options = object>(
  parent: Command,
  usage: string,
  { description, json }: Texts,
  run: (work: Work<Options>) => Promise<Outcome>,
  { mayCreate = false } = {},
): Command {
  const command = parent.command(usage).description(description).option('--json', json);
  return command.action(async () => {
    const { createLogDestination } = await import('#libs/kernel/logging/log-destination.ts');
    const { createLogger } = await import('#libs/kernel/logging/logger.ts');
    const { limitHeapGrowth } = await import('#libs/kernel/heap-growth.ts');
    const { openDatabaseUrl } = await import('./doctor-local.ts');
    limitHeapGrowth();
    // Processes that serve on the same machine come first.
    if (getPriority() < lowPriority) setPriority(lowPriority);
    const logger = createLogger({ name: 'cli', level: 'warn' }, createLogDestination({ fd: 2 }));
    const { url, close } = await openDatabaseUrl({ mayCreate }, logger);
    const draw = (text: string): void => {
      if (process.stderr.isTTY) process.stderr.write(`\r\u001b[K${text}`);
    };
    try {
      const options = command.opts<Options & { json?: boolean }>();
      const outcome = await run({ args: command.args, options, connectionString: url, logger, onProgress: draw });
      draw('');
      const { text, ok = true } = outcome;
      const lines = options.json === true ? outcome.json.map(toLine) : text;
      for (const line of lines) print(line);
      if (!ok) process.exitCode = 1;
    } finally {
      await close();
    }
  });
}
