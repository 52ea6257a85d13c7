import { inlineModels } from '#apps/platform/models.ts';
import type { BatchEvent } from '#libs/batches/batch/batch.ts';
import { readStream } from '#libs/event-log/read-events.ts';
import { checkInlineModels } from '#libs/event-log/rebuild.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { BatchEvidence } from './check-batch.ts';
import type { LoggedEvent } from './check-calls.ts';
import type { Rig } from './rig/start-rig.ts';

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

const residueMs = 5_000;

/** HOLD-7: soon after the end of a batch nothing of it is left: no turn, no open chunk, no key. */
export async function checkResidue(rig: Rig, batchId: string): Promise<string[]> {
  const deadline = performance.now() + residueMs;
  for (;;) {
    const violations = await findResidue(rig, batchId);
    if (violations.length === 0 || performance.now() > deadline) return violations;
    await sleep(100);
  }
}

async function findResidue(rig: Rig, batchId: string): Promise<string[]> {
  const turns = await rig.db.selectFrom('batch_turn').select('work').where('batch_id', '=', batchId).execute();
  const chunks = await rig.db
    .selectFrom('batch_chunk')
    .select(['chunk', 'state'])
    .where('batch_id', '=', batchId)
    .where('state', '<>', 'done')
    .execute();
  const secrets = await rig.db.selectFrom('secret').select('id').where('owner_id', '=', batchId).execute();
  return [
    ...(secrets.length === 0 ? [] : ["the caller's key is left"]),
    ...turns.map(({ work }) => `its turn is left, to ${work}`),
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
