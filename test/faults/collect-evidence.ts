import { sql } from 'kysely';
import { inlineModels } from '#apps/platform/models.ts';
import type { BatchEvent } from '#libs/batches/batch.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { BatchEvidence } from './check-batch.ts';
import type { LoggedEvent } from './check-calls.ts';
import type { Rig } from './rig/start-rig.ts';
import { loseHeartbeats } from './strike.ts';

/** The files and the log of a batch that has ended. */
export async function collectEvidence(
  rig: Rig,
  batchId: string,
): Promise<Pick<BatchEvidence, 'batch' | 'output' | 'errors' | 'events'>> {
  const batch = await rig.client.retrieveBatch(batchId);
  const content = async (id: string | null): Promise<Buffer | null> => (id ? await rig.client.fileContent(id) : null);
  const events: LoggedEvent[] = [];
  for (;;) {
    const page = await readStream(rig.db, batchId, events.length);
    for (const { type, data, streamVersion, recordedAt } of page)
      events.push({ event: { type, data } as BatchEvent, version: streamVersion, recordedAt });
    if (page.length === 0) break;
  }
  return { batch, events, output: await content(batch.output_file_id), errors: await content(batch.error_file_id) };
}

/** HOLD-4: every read model is what the log says. */
export async function checkModels(rig: Rig): Promise<string[]> {
  const { difference } = await checkInlineModels(rig.pool, inlineModels);
  if (!difference) return [];
  const { model, id, live, folded } = difference;
  return [`${model} ${id} is ${JSON.stringify(live)}, the log says ${JSON.stringify(folded)}`];
}

// The last job of a killed worker is redelivered after its heartbeat and a monitor pass, and then found to be done.
const residueMs = 45_000;

/** HOLD-7: soon after the end of a batch nothing of it is left: no job, no open chunk, no key. */
export async function checkResidue(rig: Rig, batchId: string, hurry: boolean): Promise<string[]> {
  const deadline = performance.now() + residueMs;
  for (let round = 0; ; round += 1) {
    const violations = await findResidue(rig, batchId);
    if (violations.length === 0 || performance.now() > deadline) return violations;
    if (hurry && round % 20 === 0) await loseHeartbeats(rig);
    await sleep(100);
  }
}

async function findResidue(rig: Rig, batchId: string): Promise<string[]> {
  const jobs = await sql<{ name: string; state: string }>`
    select name, state::text from pgboss.job
    where data ->> 'batch_id' = ${batchId} and state < 'completed'`.execute(rig.db);
  const chunks = await rig.db
    .selectFrom('batch_chunk')
    .select(['chunk', 'state'])
    .where('batch_id', '=', batchId)
    .where('state', '<>', 'done')
    .execute();
  const secrets = await rig.db.selectFrom('secret').select('id').where('owner_id', '=', batchId).execute();
  return [
    ...(secrets.length === 0 ? [] : ["the caller's key is left"]),
    ...jobs.rows.map(({ name, state }) => `a job of queue ${name} is left, ${state}`),
    ...chunks.map(({ chunk, state }) => `chunk ${chunk} is left, ${state}`),
  ];
}

/** HOLD-8: a call that was sent again has created one record. */
export async function checkOnce(rig: Rig, filename: string, fileId: string): Promise<string[]> {
  const files = await rig.db.selectFrom('file').select('id').where('filename', '=', filename).execute();
  const batches = await rig.db.selectFrom('batch').select('id').where('input_file_id', '=', fileId).execute();
  return [
    ...(files.length === 1 ? [] : [`${files.length} files were made of one upload`]),
    ...(batches.length === 1 ? [] : [`${batches.length} batches were made by one call`]),
  ];
}
