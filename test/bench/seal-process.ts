import { createDatabase, createPool } from '#libs/database/pool.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createSealer } from '#libs/seal/seal-log.ts';
import { createSealDeps } from './seal-bench.ts';

// Seals the log of DATABASE_URL as a worker does, until it gets SIGTERM. node seal-process.ts FOLDER

const [folder = ''] = process.argv.slice(2);
const logger = createLogger({ name: 'sealer', level: 'error' });
const connectionString = process.env['DATABASE_URL'] ?? '';
const db = createDatabase(createPool({ connectionString, applicationName: 'sluice-bench-seal', max: 2 }, logger));
const sealer = createSealer(createSealDeps(db, folder));
sealer.start();
process.once('SIGTERM', () => void sealer.stop().then(() => process.exit(0)));
console.log('ready');
process.on('disconnect', () => process.exit(0));
