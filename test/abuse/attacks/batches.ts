import { chatLines, repeat, untilOver, type Attack, type Scene } from '../attack.ts';
import { insertDueTurns, insertValidatingBatches } from '../rig/insert-rows.ts';
import { setUpSmallDisk } from '../rig/small-disk.ts';

// Attacks of one tenant's batches on those of another.

function hangingBatches(count: number, word: string, lines = 300): Attack {
  return {
    name: `${word}-hanging-batches`,
    what: `${word} batches of ${lines} lines at a provider that never answers`,
    async prepare(scene) {
      const model = await scene.model('hang');
      const file = await scene.upload(chatLines(model, lines));
      for (let batch = 0; batch < count; batch += 1) await scene.createBatch(file);
      // The time in which they acquire all that they can get.
      await new Promise((resolve) => setTimeout(resolve, 3_000));
    },
    run: untilOver,
  };
}

const boundary = 'sluice-abuse';
/** A form with a file of this many bytes. */
const uploadOf = (sizeBytes: number): Buffer =>
  Buffer.concat([
    Buffer.from(
      `--${boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--${boundary}\r\n` +
        'content-disposition: form-data; name="file"; filename="large.jsonl"\r\n\r\n',
    ),
    Buffer.alloc(sizeBytes, '{"custom_id":"a"}\n'),
    Buffer.from(`\r\n--${boundary}--\r\n`),
  ]);

/** Uploads the same form until one is refused or this many were accepted. */
async function uploadUntilRefused(scene: Scene, body: Buffer, count: number): Promise<void> {
  const headers = { 'content-type': `multipart/form-data; boundary=${boundary}` };
  for (let upload = 0; upload < count && !scene.signal.aborted; upload += 1) {
    if ((await scene.call({ path: '/v1/files', headers, body })) !== '200') return;
  }
}

/** Fills the disk to its last block: first with large files, then with smaller and smaller ones. */
async function fillDisk(scene: Scene): Promise<void> {
  for (const [sizeBytes, count] of [
    [16_777_216, 150],
    [1_048_576, 20],
    [65_536, 20],
    [1_024, 100],
  ] as const) {
    await uploadUntilRefused(scene, uploadOf(sizeBytes), count);
  }
}

export const batchAttacks: readonly Attack[] = [
  hangingBatches(3, 'three'),
  hangingBatches(20, 'twenty'),
  // More than the queue and all slots of a worker take.
  hangingBatches(500, 'five-hundred', 4),
  {
    name: 'eight-large-batches',
    what: 'eight batches of 150,000 lines are created before the victim’s',
    async run(scene) {
      const file = await scene.upload(chatLines(await scene.model('fast'), scene.isShort ? 20_000 : 150_000));
      for (let batch = 0; batch < 8; batch += 1) await scene.createBatch(file);
      await untilOver(scene);
    },
  },
  {
    name: 'validating-batches',
    what: '10,000 batches that are being validated are in the table, with 50,000 that have ended',
    async prepare(scene) {
      await insertValidatingBatches(scene.pool, { batches: 10_000, ended: 50_000 });
    },
    run: untilOver,
  },
  {
    name: 'due-turns',
    what: '300,000 turns of batches wait until they are due',
    async prepare(scene) {
      await insertDueTurns(scene.pool, 300_000);
    },
    run: untilOver,
  },
  {
    name: 'full-disk',
    what: 'one tenant, who may store 512 MiB, uploads to a disk of 2 GiB until it is refused, and then goes on trying',
    environment: { SLUICE_STORED_MAX: '512MiB' },
    setUp: setUpSmallDisk,
    prepare: fillDisk,
    run: (scene) => repeat(scene, 1, 100, () => uploadUntilRefused(scene, uploadOf(1_024), 1)),
  },
];
