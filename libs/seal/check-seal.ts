import type { Kysely } from 'kysely';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import type { Database } from '#libs/database/schema.ts';
import { logStart } from '#libs/event-log/read-events.ts';
import { readHashes } from '#libs/event-log/read-hashes.ts';
import { parseCheckpoint, type Checkpoint } from './checkpoint.ts';
import { makeEntries, parseSuccession, type Head } from './entries.ts';
import { createRunningRoot, hashLeaf } from './merkle-tree.ts';
import { checkpointFile } from './seal-log.ts';
import { parseBundle, tilePath } from './tiles.ts';
import { parseOrigin } from './tree-names.ts';

type Problem = { subject: string; message: string };

/**
 * Compares the log with the entries that were sealed, and these with the checkpoints of their trees. After the first entry
 * that differs from the log, the others are only compared with their checkpoint. Signatures are not checked.
 */
export async function checkSeal(
  db: Kysely<Database>,
  folder: BlobFolder,
  onProgress: (entries: number) => void,
): Promise<{ entries: number; problems: Problem[] }> {
  const problems: Problem[] = [];
  const newest = await readCheckpoint(folder, checkpointFile);
  if (newest === null) return { entries: 0, problems };
  const events = readEntries(db);
  let entries = 0;
  let agrees = true;
  for (let tree = 1; tree <= parseOrigin(newest.origin).tree; tree += 1) {
    const subject = `tree ${tree}`;
    const checkpoint = await readCheckpoint(folder, `${tree}/${checkpointFile}`);
    const kept = (await readSuccession(folder, tree + 1))?.kept ?? Infinity;
    const root = createRunningRoot();
    let index = 0;
    try {
      for await (const entry of readTree(folder, tree, checkpoint)) {
        root.add(hashLeaf(entry));
        const isEvent = index > 0 || tree === 1 || parseSuccession(entry) === null;
        if (agrees && isEvent && index < kept) {
          const { value: expected } = await events.next();
          agrees = expected?.entry.equals(entry) === true;
          const found =
            expected === undefined
              ? 'the event of this entry is missing'
              : `the log has another event at ${expected.position}`;
          if (!agrees) problems.push({ subject: `entry ${index} of ${subject}`, message: found });
        }
        index += 1;
        entries += 1;
        if (entries % 10_000 === 0) onProgress(entries);
      }
      if (checkpoint?.root.equals(root.root()) === false) {
        problems.push({ subject, message: 'its entries do not have the root of its checkpoint' });
      }
    } catch (error) {
      problems.push({ subject, message: (error as Error).message });
      agrees = false;
    }
  }
  return { entries, problems };
}

/** What should be sealed: the entries of all events, in the order of the log. */
async function* readEntries(db: Kysely<Database>): AsyncGenerator<{ entry: Buffer; position: number }, undefined> {
  const heads = new Map<string, Head>();
  for (let after = logStart; ;) {
    const page = await readHashes(db, after, 4_096);
    const last = page.at(-1);
    if (last === undefined) return undefined;
    for (const [index, entry] of makeEntries(page, heads).entries()) {
      yield { entry, position: page[index]?.position ?? 0 };
    }
    after = last;
  }
}

async function readCheckpoint(folder: BlobFolder, path: string): Promise<Checkpoint | null> {
  const note = (await folder.read(path))?.toString();
  return note === undefined ? null : parseCheckpoint(note.slice(0, note.lastIndexOf('\n\n') + 1));
}

/** The entries of a tree. Throws if some are missing. */
async function* readTree(folder: BlobFolder, tree: number, checkpoint: Checkpoint | null): AsyncGenerator<Buffer> {
  if (checkpoint === null) throw new Error('its checkpoint is missing');
  for (let index = 0; index * 256 < checkpoint.size; index += 1) {
    const width = Math.min(256, checkpoint.size - index * 256);
    const paths = [tilePath('entries', index, width), tilePath('entries', index, 256)];
    const bundle = (await folder.read(`${tree}/${paths[0]}`)) ?? (await folder.read(`${tree}/${paths[1]}`));
    if (bundle === null) throw new Error(`${paths[0]} is missing`);
    yield* parseBundle(bundle).slice(0, width);
  }
}

/** The succession that the first entry of a tree records; null if the tree does not exist. */
async function readSuccession(folder: BlobFolder, tree: number) {
  const checkpoint = await readCheckpoint(folder, `${tree}/${checkpointFile}`);
  if (checkpoint === null) return null;
  for await (const entry of readTree(folder, tree, checkpoint)) return parseSuccession(entry);
  return null;
}
