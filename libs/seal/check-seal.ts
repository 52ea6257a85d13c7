import type { Kysely } from 'kysely';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import type { Database } from '#libs/database/schema.ts';
import { logStart } from '#libs/event-log/read-events.ts';
import { readHashes } from '#libs/event-log/read-hashes.ts';
import { parseCheckpoint, type Checkpoint } from './checkpoint.ts';
import { makeEntries, parseSuccession, type Head } from './entries.ts';
import { checkpointFile } from './seal-log.ts';
import { readNewestCheckpoint } from './seal-state.ts';
import { emptyEdge, fullPath, growTree, parseBundle, partialFolder, rootOfEdge, tilePath } from './tiles.ts';
import { parseOrigin } from './tree-names.ts';

type Problem = { subject: string; message: string };

/**
 * Compares the log with the entries that were sealed, and these with the tiles and checkpoints of their trees. After the
 * first entry that differs from the log, the others are only compared with their tree. Signatures are not checked.
 */
export async function checkSeal(
  db: Kysely<Database>,
  folder: BlobFolder,
  onProgress: (entries: number) => void,
): Promise<{ entries: number; problems: Problem[] }> {
  const problems: Problem[] = [];
  const newest = await readCheckpoint(folder, checkpointFile).catch((error: Error) => error);
  if (newest === null || newest instanceof Error) {
    const isSealed = (await readNewestCheckpoint(db)) !== null;
    if (isSealed) problems.push({ subject: checkpointFile, message: newest?.message ?? 'the file is missing' });
    return { entries: 0, problems };
  }
  const events = readEntries(db);
  let entries = 0;
  let agrees = true;
  for (let tree = 1; tree <= parseOrigin(newest.origin).tree; tree += 1) {
    const subject = `tree ${tree}`;
    try {
      const checkpoint = await readCheckpoint(folder, `${tree}/${checkpointFile}`);
      const kept = (await readSuccession(folder, tree + 1))?.kept ?? Infinity;
      const tiles = createTileCheck(folder, tree);
      let index = 0;
      for await (const bundle of readTree(folder, tree, checkpoint)) {
        for (const entry of bundle) {
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
        }
        await tiles.add(bundle);
        entries += bundle.length;
        onProgress(entries);
      }
      const { root, problem } = await tiles.end();
      if (problem !== null) problems.push({ subject, message: problem });
      if (checkpoint?.root.equals(root) === false) {
        problems.push({ subject, message: 'its entries do not have the root of its checkpoint' });
      }
    } catch (error) {
      problems.push({ subject, message: (error as Error).message });
      agrees = false;
    }
  }
  return { entries, problems };
}

/** Compares the tiles of a tree with its entries. `end` returns the root, and the first difference. */
function createTileCheck(folder: BlobFolder, tree: number) {
  let edge = emptyEdge;
  let problem: string | null = null;
  const compare = async (path: string, bytes: Buffer): Promise<void> => {
    // A partial tile can have been replaced by the full one.
    const found = (await folder.read(`${tree}/${path}`)) ?? (await folder.read(`${tree}/${fullPath(path)}`));
    if (problem !== null || found?.subarray(0, bytes.length).equals(bytes) === true) return;
    const wrong = Array.from({ length: bytes.length / 32 }, (_hash, index) => index * 32).findIndex(
      (at) => found?.subarray(at, at + 32).equals(bytes.subarray(at, at + 32)) !== true,
    );
    problem = found === null ? `${path} is missing` : `${path}: its hash ${wrong} is not that of the entries`;
  };
  return {
    async add(entries: readonly Buffer[]): Promise<void> {
      const grown = growTree(edge, entries);
      edge = grown.edge;
      const full = grown.files.filter(({ path }) => partialFolder(path) !== null && !path.startsWith('tile/entries/'));
      for (const { path, bytes } of full) await compare(path, bytes);
    },
    async end(): Promise<{ root: Buffer; problem: string | null }> {
      for (const [level, bytes] of edge.levels.entries()) {
        const width = bytes.length / 32;
        const tile = Math.floor(edge.size / 256 ** (level + 1));
        if (width > 0) await compare(tilePath(level, tile, width), bytes);
      }
      return { root: rootOfEdge(edge), problem };
    },
  };
}

/** What should be sealed: the entries of all events, in the order of the log. */
async function* readEntries(db: Kysely<Database>): AsyncGenerator<{ entry: Buffer; position: number }, undefined> {
  const heads = new Map<string, Head>();
  for (let after = logStart; ;) {
    const page = await readHashes(db, after, 4_096);
    const last = page.at(-1);
    if (last === undefined) return undefined;
    // A forger can have removed a hash.
    const hashed = page.map((event) => ({ ...event, sha256: event.sha256 ?? Buffer.alloc(0) }));
    for (const [index, entry] of makeEntries(hashed, heads).entries()) {
      yield { entry, position: page[index]?.position ?? 0 };
    }
    after = last;
  }
}

async function readCheckpoint(folder: BlobFolder, path: string): Promise<Checkpoint | null> {
  const note = (await folder.read(path))?.toString();
  return note === undefined ? null : parseCheckpoint(note.slice(0, note.lastIndexOf('\n\n') + 1));
}

/** The bundles of entries of a tree. Throws if one is missing or cut off. */
async function* readTree(folder: BlobFolder, tree: number, checkpoint: Checkpoint | null): AsyncGenerator<Buffer[]> {
  if (checkpoint === null) throw new Error('its checkpoint is missing');
  for (let index = 0; index * 256 < checkpoint.size; index += 1) {
    const width = Math.min(256, checkpoint.size - index * 256);
    const path = tilePath('entries', index, width);
    const bytes = (await folder.read(`${tree}/${path}`)) ?? (await folder.read(`${tree}/${fullPath(path)}`));
    if (bytes === null) throw new Error(`${path} is missing`);
    const bundle = parseBundle(bytes).slice(0, width);
    if (bundle.length < width) throw new Error(`${path} has ${bundle.length} entries instead of ${width}`);
    yield bundle;
  }
}

/** The succession that the first entry of a tree records; null if the tree does not exist. */
async function readSuccession(folder: BlobFolder, tree: number) {
  const checkpoint = await readCheckpoint(folder, `${tree}/${checkpointFile}`);
  if (checkpoint === null) return null;
  for await (const [entry] of readTree(folder, tree, checkpoint))
    return entry === undefined ? null : parseSuccession(entry);
  return null;
}
