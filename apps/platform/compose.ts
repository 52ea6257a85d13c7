import type { Kysely } from 'kysely';
import type { Pool } from 'pg';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { createDiskBlobStore } from '#libs/blobs/disk-blob-store.ts';
import { createDatabase, createPool } from '#libs/database/pool.ts';
import { migrate } from '#libs/database/migrate.ts';
import type { Database } from '#libs/database/schema.ts';
import { createEventLog, type EventLog } from '#libs/event-log/event-log.ts';
import { createFiles, type Files } from '#libs/files/files.ts';
import { parseEgressAllow } from '#libs/forwarding/egress-allow.ts';
import { createEgress, type Egress } from '#libs/forwarding/egress.ts';
import { createForwarder, type Forwarder } from '#libs/forwarding/forward.ts';
import { systemClock } from '#libs/kernel/clock.ts';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { createJobQueue, type JobQueue } from '#libs/queue/job-queue.ts';
import { createRequestLog, type RequestLog } from '#libs/request-log/request-log.ts';
import type { z } from 'zod';
import { createAccess, type Access } from './access.ts';
import { blobFolder, type platformFields } from './config.ts';
import { allQueues } from './queues.ts';

type PlatformConfig = z.output<z.ZodObject<typeof platformFields>>;

/** What the API and the worker are both made of. `parts` are in start order. */
export type Platform = {
  pool: Pool;
  db: Kysely<Database>;
  eventLog: EventLog;
  queue: JobQueue;
  blobs: BlobStore;
  access: Access;
  files: Files;
  egress: Egress;
  forwarder: Forwarder;
  requestLog: RequestLog;
  timeouts: { connectMs: number; headersMs: number; idleMs: number; totalMs: number };
  parts: Part[];
};

export async function createPlatform(
  config: PlatformConfig,
  app: { name: string; role: 'sender' | 'worker' },
  logger: Logger,
): Promise<Platform> {
  const connectionString = config.DATABASE_URL;
  // Before anything reads a table. Several processes may start together: one migrates, the others wait.
  await migrate({ connectionString, logger });
  const pool = createPool(
    { connectionString, applicationName: `sluice-${app.name}`, max: config.SLUICE_DB_POOL_MAX },
    logger,
  );
  const db = createDatabase(pool);
  const eventLog = createEventLog(db);
  const blobs = await createDiskBlobStore({ folder: blobFolder(config) });
  await requireOwnBlobStore(db, blobs);
  const queue = createJobQueue({
    connectionString,
    role: app.role,
    queues: allQueues,
    logger,
    poolSizeMax: app.role === 'worker' ? 4 : 2,
  });
  const egress = createEgress({
    allow: parseEgressAllow(config.SLUICE_EGRESS_ALLOW),
    connectTimeoutMs: config.SLUICE_CONNECT_TIMEOUT,
    connectionsPerOrigin: config.SLUICE_CONNECTIONS_PER_ORIGIN,
  });
  const forwarder = createForwarder({
    egress,
    clock: systemClock,
    random: Math.random,
    limits: { jsonBytesMax: config.SLUICE_RESPONSE_MAX },
    logger,
  });
  const requestLog = createRequestLog({
    db,
    pool,
    logger,
    clock: systemClock,
    queueRowsMax: config.SLUICE_REQUEST_LOG_QUEUE,
  });
  const access = await createAccess({ db, connectionString, masterKey: config.SLUICE_MASTER_KEY, logger });
  const files = createFiles({ db, eventLog, blobs, clock: systemClock });
  return {
    pool,
    db,
    eventLog,
    queue,
    blobs,
    access,
    files,
    egress,
    forwarder,
    requestLog,
    timeouts: {
      connectMs: config.SLUICE_CONNECT_TIMEOUT,
      headersMs: config.SLUICE_HEADERS_TIMEOUT,
      idleMs: config.SLUICE_IDLE_TIMEOUT,
      totalMs: config.SLUICE_TOTAL_TIMEOUT,
    },
    parts: [
      { name: 'database pool', stop: () => db.destroy() },
      { name: 'egress', stop: () => egress.stop() },
      queue,
      requestLog,
      access.snapshot,
      { name: 'forwarder', stop: () => forwarder.stop() },
    ],
  };
}

/**
 * The blob store that belongs to this database: the first process records its id, and every later one that brings
 * another store is refused, because files of the one would be missing in the other.
 */
async function requireOwnBlobStore(db: Kysely<Database>, blobs: BlobStore): Promise<void> {
  const value = await blobs.storeId();
  await db
    .insertInto('installation')
    .values({ name: 'blob_store_id', value })
    .onConflict((on) => on.doNothing())
    .execute();
  const row = await db
    .selectFrom('installation')
    .select('value')
    .where('name', '=', 'blob_store_id')
    .executeTakeFirstOrThrow();
  if (row.value === value) return;
  throw new ConfigurationError(
    `This blob store (${value}) is not the one that the database belongs to (${row.value}): give every api and worker ` +
      'process the same SLUICE_BLOBS, and a copied database its own copy of the store.',
  );
}
