import { randomBytes } from 'node:crypto';
import { sql, type Kysely } from 'kysely';
import { v7 as uuidv7 } from 'uuid';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import type { Database } from '#libs/database/schema.ts';
import type { Recording } from '#libs/http/caller.ts';
import { createBackgroundLoop } from '#libs/kernel/background-loop.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { untilAborted } from '#libs/kernel/until-aborted.ts';
import { createThreadLane } from '#libs/threads/thread-lane.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import { BodyGroups, type CallBodies, type Group } from './body-groups.ts';
import type { BodiesToSeal, SealedBodies } from './seal-bodies-worker.ts';

export type BodyRecorder = Part & {
  /**
   * Queues bodies to be stored, and returns the reference that the call's row stores (`bodies_blob`). Returns null if
   * both bodies are missing or the memory limit is reached. Never waits or throws. The caller must not change the bodies
   * afterwards.
   */
  record(workspaceId: string, recording: Recording, bodies: CallBodies): string | null;
  stats(): { waitingBytes: number; recorded: number; dropped: number };
};

type Deps = {
  db: Kysely<Database>;
  blobs: Pick<BlobStore, 'put'>;
  secrets: Pick<Secrets, 'store'>;
  /** The database's clock. */
  clock: Clock;
  logger: Logger;
  /** The retention of bodies for workspaces that do not specify one. */
  retentionMs: number;
  /** The maximum of all bodies of a workspace. Beyond it, no body is recorded. */
  workspaceBytesMax: number;
  /** The memory for waiting bodies of all workspaces. Default 64 MiB; one workspace can use a quarter of it. */
  waitingBytesMax?: number;
};

/** A blob is written this long after its first body, unless it is full before. */
const groupWaitMs = 1_000;
/** Larger bodies are left out. */
export const bodyBytesMax = 1_048_576;
const dayMs = 86_400_000;
/** One process uses a key of bodies for a day, far below the number of texts that one key can encrypt. */
const keyMs = dayMs;
const sizeCheckMs = 60_000;
const tries = 3;
const retryMs = 1_000;
const sealTimeoutMs = 20_000;
const stopDeadlineMs = 5_000;

/** The owner prefix of the secrets that hold keys of bodies. */
export const bodyKeyOwner = 'body_key_';

/**
 * Records the bodies of calls whose key asks for it: many in one blob, redacted, compressed and encrypted in a thread,
 * and written in the background. A call never waits for it. When the recorder cannot keep up, or a process dies, bodies
 * are missing, but the rows of the request log are complete.
 */
export function createBodyRecorder(deps: Deps): BodyRecorder {
  const { db, blobs, clock, logger, waitingBytesMax = 64 * 1_048_576 } = deps;
  const groups = new BodyGroups(waitingBytesMax, () => void loop.wake());
  const lane = createThreadLane<BodiesToSeal, SealedBodies>({
    module: new URL('./seal-bodies-worker.ts', import.meta.url),
    threads: 1,
    threadMemoryMb: 256,
    idleTimeoutMs: 10_000,
  });
  const keys = new Map<string, { owner: string; key: Buffer; untilMs: number }>();
  const sizes = new Map<string, { bytes: number; readMs: number }>();
  let recorded = 0;
  let dropped = 0;

  async function writeAll(): Promise<void> {
    groups.closeOlderThan(groupWaitMs);
    for (let group = groups.next(); group !== undefined; group = groups.next()) {
      try {
        await write(group);
        recorded += group.bodies.length;
      } catch (error) {
        dropped += group.bodies.length;
        logger.warn({ err: error, bodies: group.bodies.length }, 'bodies of calls were not recorded');
      } finally {
        groups.release(group);
      }
    }
  }

  async function write({ id, workspaceId, recording, bodies }: Group): Promise<void> {
    if ((await sizeOf(workspaceId)) >= deps.workspaceBytesMax)
      throw new Error(`workspace ${workspaceId} has reached its limit of recorded bodies (SLUICE_RECORDING_MAX)`);
    const { owner, key } = await keyOf(workspaceId);
    const task = { identity: `${workspaceId}/${id}`, key, redact: recording.redact, bodies };
    const sealed = await lane.run(task, { timeoutMs: sealTimeoutMs, group: workspaceId });
    if (sealed === null) throw new Error('bodies could not be redacted and encrypted in time');
    const { blob, sizeBytes } = await blobs.put(onePiece(sealed.bytes), { leavesReserve: true });
    const keptMs = recording.retentionDays === undefined ? deps.retentionMs : recording.retentionDays * dayMs;
    const row = {
      id,
      workspace_id: workspaceId,
      blob,
      offsets: sealed.offsets,
      key_owner: owner,
      size_bytes: sizeBytes,
      expires_at: new Date(clock.now() + keptMs),
    };
    await patiently(() => db.insertInto('recorded_bodies').values(row).execute());
    const size = sizes.get(workspaceId);
    if (size !== undefined) size.bytes += sizeBytes;
  }

  /** The size of all recorded bodies of a workspace, read once a minute. */
  async function sizeOf(workspaceId: string): Promise<number> {
    const known = sizes.get(workspaceId);
    if (known !== undefined && performance.now() - known.readMs < sizeCheckMs) return known.bytes;
    const bytes = await readSize(db, workspaceId);
    if (sizes.size >= sizesMax) sizes.clear();
    sizes.set(workspaceId, { bytes, readMs: performance.now() });
    return bytes;
  }

  /** The key that encrypts a workspace's bodies in this process for a day. It is stored like the credentials of providers. */
  async function keyOf(workspaceId: string): Promise<{ owner: string; key: Buffer }> {
    const known = keys.get(workspaceId);
    if (known !== undefined && known.untilMs > performance.now()) return known;
    const key = randomBytes(32);
    const owner = `${bodyKeyOwner}${uuidv7()}`;
    await patiently(() =>
      db.transaction().execute(async (tx) => {
        const members = { key: new Secret(key.toString('base64')) };
        await deps.secrets.store({ tx, now: new Date(clock.now()) }, { workspaceId, ownerId: owner }, members);
      }),
    );
    const made = { owner, key, untilMs: performance.now() + keyMs };
    if (keys.size >= sizesMax) keys.clear();
    keys.set(workspaceId, made);
    return made;
  }

  const loop = createBackgroundLoop({ name: 'body recorder', periodMs: groupWaitMs / 4, run: writeAll, logger });

  return {
    ...loop,
    async stop() {
      groups.closeOlderThan(0);
      await untilAborted(loop.wake(), AbortSignal.timeout(stopDeadlineMs), () => {});
      void loop.stop();
      await lane.stop();
    },
    record(workspaceId, recording, { request, response }) {
      const bodies = { request: small(request), response: small(response) };
      if (bodies.request === null && bodies.response === null) return null;
      const reference = groups.add(workspaceId, recording, bodies);
      if (reference === null) dropped += 1;
      return reference;
    },
    stats: () => ({ waitingBytes: groups.waitingBytes, recorded, dropped }),
  };
}

/** The maximum of workspaces whose keys and sizes a process remembers. */
const sizesMax = 10_000;

async function readSize(db: Kysely<Database>, workspaceId: string): Promise<number> {
  const { bytes } = await db
    .selectFrom('recorded_bodies')
    .select(sql<number>`coalesce(sum(size_bytes), 0)::float8`.as('bytes'))
    .where('workspace_id', '=', workspaceId)
    .executeTakeFirstOrThrow();
  return bytes;
}

const small = (bytes: Uint8Array | null): Uint8Array | null =>
  bytes === null || bytes.length === 0 || bytes.length > bodyBytesMax ? null : bytes;

// eslint-disable-next-line @typescript-eslint/require-await
async function* onePiece(bytes: Uint8Array): AsyncIterable<Uint8Array> {
  yield bytes;
}

async function patiently<Value>(work: () => Promise<Value>): Promise<Value> {
  for (let count = 1; ; count += 1) {
    try {
      return await work();
    } catch (error) {
      if (count >= tries) throw error;
      await sleep(retryMs);
    }
  }
}
