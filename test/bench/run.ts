import { availableParallelism, cpus, loadavg, totalmem } from 'node:os';
import { parseArgs } from 'node:util';
import pg from 'pg';
import { migrate } from '#libs/database/migrate.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { measureAnalytics } from './analytics-bench.ts';
import { measureBatch, measureSmallBatches } from './batch-bench.ts';
import { measureBodies } from './body-bench.ts';
import { measureExports } from './export-bench.ts';
import { measureFeatures } from './feature-bench.ts';
import { measureTelemetry } from './telemetry-bench.ts';
import { measureLive } from './live-bench.ts';
import { measureLog } from './log-bench.ts';
import { measureProfile } from './profile-bench.ts';
import { profileRows } from './profile-rows.ts';
import { measureRebuild } from './rebuild-bench.ts';
import { rebuildRows, sealRows } from './record-rows.ts';
import {
  analyticsRows,
  batchRows,
  bodyRows,
  exportRows,
  featureRows,
  telemetryRows,
  formatTable,
  liveRows,
  logRows,
  smallBatchRows,
  type Row,
} from './report.ts';
import { measureSeal } from './seal-bench.ts';
import {
  createCleanup,
  createDatabaseBeside,
  makeScratchDirectory,
  startPostgres,
  startStack,
  stopStack,
} from './stack.ts';

// Measures Sluice on this machine, against its targets and against other gateways. `--events`: how many events the rebuild of
// the section `record` has. `--profile`: instead shows where the processor time of a call, of an event of a stream and of a
// line of a batch goes.

const sections = ['batch', 'live', 'bodies', 'features', 'telemetry', 'log', 'record', 'exports', 'analytics'] as const;
type Section = (typeof sections)[number];

const usage = `usage: npm run bench -- [--quick] [--only ${sections.join('|')}] [--events NUMBER] [--profile]`;

const full = {
  batches: [
    { lines: 50_000, lineBytes: 400 },
    { lines: 50_000, lineBytes: 4_000 },
  ],
  smallBatches: { batches: 500, lines: 10 },
  features: { rounds: 3, seconds: 2, warmUpSeconds: 1, modestSeconds: 2 },
  telemetry: { rounds: 7, seconds: 2, warmUpSeconds: 0.5, modestSeconds: 1 },
  live: { rounds: 9, seconds: 1.5, warmUpSeconds: 0.5, modestSeconds: 1 },
  bodies: { rounds: 5, seconds: 3, warmUpSeconds: 1, modestSeconds: 3 },
  log: { singlySeconds: 5, events: 200_000, replays: 3 },
  seal: { rounds: 5, seconds: 4, events: 200_000 },
  rebuild: { events: 200_000, liveSeconds: 5, aloneSeconds: 10, states: 500 },
  exports: { hours: 3 },
  analytics: { rounds: 10, logMs: 24 * 3_600_000 },
  profile: { seconds: 5, lines: 20_000 },
};
const quick: typeof full = {
  batches: [
    { lines: 5_000, lineBytes: 400 },
    { lines: 5_000, lineBytes: 4_000 },
  ],
  smallBatches: { batches: 100, lines: 10 },
  features: { rounds: 2, seconds: 1, warmUpSeconds: 0.5, modestSeconds: 1 },
  telemetry: { rounds: 2, seconds: 1, warmUpSeconds: 0.5, modestSeconds: 1 },
  live: { rounds: 3, seconds: 1, warmUpSeconds: 0.5, modestSeconds: 1 },
  bodies: { rounds: 2, seconds: 2, warmUpSeconds: 0.5, modestSeconds: 2 },
  log: { singlySeconds: 2, events: 50_000, replays: 2 },
  seal: { rounds: 2, seconds: 2, events: 30_000 },
  rebuild: { events: 30_000, liveSeconds: 2, aloneSeconds: 3, states: 100 },
  exports: { hours: 1 },
  analytics: { rounds: 3, logMs: 3_600_000 },
  profile: { seconds: 2, lines: 2_000 },
};

const options = readOptions();
const cleanup = createCleanup();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => void cleanup.run().finally(() => process.exit(130)));
}
try {
  console.log(`\n${formatTable(await measure(options))}\n`);
} finally {
  await cleanup.run();
}

function readOptions(): { wanted: ReadonlySet<Section | 'profile'>; sizes: typeof full } {
  try {
    const { values } = parseArgs({
      options: {
        quick: { type: 'boolean', default: false },
        profile: { type: 'boolean', default: false },
        only: { type: 'string' },
        events: { type: 'string' },
      },
    });
    const size = values.quick ? quick : full;
    const events = Number(values.events ?? size.rebuild.events);
    if (!(Number.isInteger(events) && events >= 1_000 && events <= 1_000_000))
      throw new Error('--events must be a number from 1,000 to 1,000,000');
    const sizes = { ...size, rebuild: { ...size.rebuild, events } };
    if (values.profile) return { wanted: new Set(['profile']), sizes };
    const wanted = values.only === undefined ? sections : sections.filter((section) => section === values.only);
    if (wanted.length === 0) throw new Error(`there is no section ${values.only}`);
    return { wanted: new Set(wanted), sizes };
  } catch (error) {
    console.error(`${error instanceof Error ? error.message : String(error)}\n${usage}`);
    process.exit(2);
  }
}

async function measure({ wanted, sizes }: ReturnType<typeof readOptions>): Promise<Row[]> {
  const rows: Row[] = [];
  const directory = await makeScratchDirectory(cleanup);
  const postgres = await startPostgres(directory, cleanup);
  console.log(await describeMachine(postgres.connectionString));
  const needsStack = ['batch', 'live', 'bodies', 'features', 'telemetry'] as const;
  if (needsStack.some((section) => wanted.has(section))) {
    const stack = await startStack(directory, postgres, cleanup);
    if (wanted.has('live')) rows.push(...liveRows(await measureLive(stack, sizes.live, cleanup, progress)));
    if (wanted.has('bodies')) rows.push(...bodyRows(await measureBodies(stack, sizes.bodies, cleanup, progress)));
    if (wanted.has('features')) {
      rows.push(...featureRows(await measureFeatures(stack, sizes.features, cleanup, progress)));
    }
    if (wanted.has('telemetry')) {
      rows.push(...telemetryRows(await measureTelemetry(stack, sizes.telemetry, cleanup, progress)));
    }
    if (wanted.has('batch')) {
      for (const size of sizes.batches) rows.push(...batchRows(await measureBatch(stack, size, progress)));
      rows.push(...smallBatchRows(await measureSmallBatches(stack, sizes.smallBatches, progress)));
    }
    await stopStack(stack);
  }
  if (wanted.has('profile')) {
    const stack = await startStack(directory, postgres, cleanup, { flags: ['--inspect=127.0.0.1:0'] });
    rows.push(...profileRows(await measureProfile(stack, sizes.profile, cleanup, progress)));
    await stopStack(stack);
  }
  /** A separate database, so that a section has only what it writes itself. */
  const createOwnDatabase = async (name: string): Promise<string> => {
    const { adminConnectionString, connectionString: ownerUrl } = postgres;
    const connectionString = await createDatabaseBeside(adminConnectionString, ownerUrl, name);
    await migrate({ connectionString, logger: createLogger({ name: 'bench', level: 'error' }) });
    return connectionString;
  };
  if (wanted.has('log')) {
    const connectionString = await createOwnDatabase('sluice_bench');
    rows.push(...logRows(await measureLog({ connectionString, directory }, sizes.log, progress)));
  }
  if (wanted.has('record')) {
    const connectionString = await createOwnDatabase('sluice_seal_bench');
    rows.push(...sealRows(await measureSeal({ connectionString, directory }, sizes.seal, progress)));
    const own = { ...postgres, connectionString: await createOwnDatabase('sluice_rebuild_bench') };
    const stack = await startStack(await makeScratchDirectory(cleanup), own, cleanup);
    rows.push(...rebuildRows(await measureRebuild(stack, sizes.rebuild, cleanup, progress)));
    await stopStack(stack);
  }
  if (wanted.has('exports')) {
    const connectionString = await createOwnDatabase('sluice_exports_bench');
    rows.push(...exportRows(await measureExports({ connectionString, directory }, sizes.exports, progress)));
  }
  if (wanted.has('analytics')) {
    const connectionString = await createOwnDatabase('sluice_analytics_bench');
    rows.push(...analyticsRows(await measureAnalytics(connectionString, sizes.analytics, progress)));
  }
  progress('');
  return rows;
}

async function describeMachine(connectionString: string): Promise<string> {
  const client = new pg.Client({ connectionString });
  await client.connect();
  const { rows } = await client.query<{ server_version: string }>('show server_version');
  await client.end();
  const [load = 0] = loadavg();
  return (
    `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'}), ${Math.round(totalmem() / 1_073_741_824)} GB, ` +
    `load before ${load.toFixed(1)}, Node ${process.version}, PostgreSQL ${rows[0]?.server_version}, everything on this machine`
  );
}

/** Progress on one line that is overwritten; nothing where the output is not a terminal. */
function progress(text: string): void {
  if (process.stdout.isTTY) process.stdout.write(`\r\u001b[2K${text}`);
}
