import { mkdtemp, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { createDigestSet, type DigestSet } from './digest-set.ts';
import { wordsPerDigest } from '../slice-task.ts';

// A spilled entry: four words of digest, and line number and byte offset as doubles (exact to 2^53).
const entryBytes = 32;
const partitionCount = 64;
const bufferBytes = 64 * 1_024;

/** A line with the same custom_id as an earlier line: its number and byte offset in the file. */
export type DuplicateLine = { line: number; offset: number };

export type DuplicateFinder = {
  /** Adds the next line, in file order. Duplicates among spilled digests are found later, in `finish`. */
  add(digests: Uint32Array, at: number, line: number, offset: number): void;
  /** Writes spilled digests to disk. Await it regularly, so that memory stays bounded. */
  flush(): Promise<void>;
  /** Ends the search. Returns the number of duplicates, and the first of them by line. */
  finish(): Promise<{ count: number; first: DuplicateLine[] }>;
  /** Removes the temporary files. Always call it. */
  dispose(): Promise<void>;
};

type Options = {
  /** Digests kept in memory (about 24 bytes each). Later ones are partitioned into files. */
  inMemoryMax: number;
  /** The folder in which the temporary folder is created. */
  directory: string;
  /** How many duplicates are returned with their lines. All are counted. */
  firstMax: number;
};

/**
 * Finds repeated digests in bounded memory. The first `inMemoryMax` digests are stored in a set. Later ones are looked
 * up in it and, if they are new, appended to one of 64 files by prefix. At the end each file is searched separately.
 */
export function createDuplicateFinder({ inMemoryMax, directory, firstMax }: Options): DuplicateFinder {
  const known = createDigestSet();
  let first: DuplicateLine[] = [];
  let count = 0;
  let folder: string | undefined;
  let partitions: Partition[] = [];

  const found = (line: number, offset: number): void => {
    count += 1;
    first.push({ line, offset });
    if (first.length > 2 * firstMax) first = lowest(first, firstMax);
  };

  const search = async (partition: Partition, seen: DigestSet): Promise<void> => {
    for await (const entries of partition.read()) {
      const words = new Uint32Array(entries.buffer, entries.byteOffset, entries.byteLength / 4);
      for (let at = 0; at < entries.byteLength; at += entryBytes)
        if (!seen.add(words, at / 4)) found(entries.readDoubleLE(at + 16), entries.readDoubleLE(at + 24));
    }
  };

  return {
    add(digests, at, line, offset) {
      if (known.size < inMemoryMax) {
        if (!known.add(digests, at)) found(line, offset);
        return;
      }
      if (known.has(digests, at)) return found(line, offset);
      if (partitions.length === 0) partitions = Array.from({ length: partitionCount }, createPartition);
      const partition = partitions[(digests[at + 2] ?? 0) % partitionCount];
      partition?.append(digests.subarray(at, at + wordsPerDigest), line, offset);
    },
    async flush() {
      if (!partitions.some((partition) => partition.isFull())) return;
      folder ??= await mkdtemp(join(directory, 'sluice-duplicates-'));
      for (const [index, partition] of partitions.entries()) {
        if (partition.isFull()) await partition.write(join(folder, String(index)));
      }
    },
    async finish() {
      for (const partition of partitions) await search(partition, createDigestSet());
      return { count, first: lowest(first, firstMax) };
    },
    async dispose() {
      for (const partition of partitions) await partition.close();
      partitions = [];
      if (folder !== undefined) await rm(folder, { recursive: true, force: true });
    },
  };
}

const lowest = (lines: DuplicateLine[], max: number): DuplicateLine[] =>
  lines.toSorted((left, right) => left.line - right.line).slice(0, max);

type Partition = {
  append(digest: Uint32Array, line: number, offset: number): void;
  isFull(): boolean;
  write(path: string): Promise<void>;
  read(): AsyncGenerator<Buffer>;
  close(): Promise<void>;
};

function createPartition(): Partition {
  let buffer = Buffer.alloc(bufferBytes);
  let used = 0;
  let file: Awaited<ReturnType<typeof open>> | undefined;
  return {
    append(digest, line, offset) {
      // One slice can add more than fits the buffer before the next flush.
      if (used === buffer.length) buffer = Buffer.concat([buffer, Buffer.alloc(buffer.length)]);
      for (let word = 0; word < wordsPerDigest; word += 1) buffer.writeUInt32LE(digest[word] ?? 0, used + 4 * word);
      buffer.writeDoubleLE(line, used + 16);
      buffer.writeDoubleLE(offset, used + 24);
      used += entryBytes;
    },
    isFull: () => used * 2 >= bufferBytes,
    async write(path) {
      file ??= await open(path, 'w+', 0o600);
      await file.appendFile(buffer.subarray(0, used));
      used = 0;
      if (buffer.length > bufferBytes) buffer = Buffer.alloc(bufferBytes);
    },
    async *read() {
      let position = 0;
      for (;;) {
        // Not from Node's buffer pool, so that words are aligned.
        const entries = Buffer.alloc(1_048_576);
        const { bytesRead } = (await file?.read(entries, 0, entries.length, position)) ?? { bytesRead: 0 };
        if (bytesRead === 0) break;
        const whole = bytesRead - (bytesRead % entryBytes);
        if (whole === 0) throw new Error('a spilled entry is cut short');
        yield entries.subarray(0, whole);
        position += whole;
      }
      yield buffer.subarray(0, used);
    },
    async close() {
      await file?.close();
      file = undefined;
    },
  };
}
