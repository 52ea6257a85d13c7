import type { Readable } from 'node:stream';
import type { BlobFolder } from './blob-folder.ts';

/** The result of a finished write. `blob` is an opaque random name; `sha256` is 64 hex digits. */
export type StoredBlob = { readonly blob: string; readonly sizeBytes: number; readonly sha256: string };

/**
 * One blob being written. It becomes visible and durable when `commit` resolves. A failed write has removed its
 * remains, and so does `abort`, which can be called at any time and repeatedly; after `commit` it has no effect.
 */
export type BlobWriter = {
  /** Resolves when the store accepts more. One call at a time. Throws storage_full or payload_too_large. */
  write: (chunk: Uint8Array) => Promise<void>;
  /** Throws storage_full; resolves with the same value when called again. */
  commit: () => Promise<StoredBlob>;
  abort: () => Promise<void>;
};

export type PutOptions = {
  sizeBytesMax?: number;
  signal?: AbortSignal;
  /** Fails with storage_full if the store would have less free space than it reserves for results. */
  leavesReserve?: boolean;
};

export type BlobEntry = { readonly blob: string; readonly sizeBytes: number; readonly modifiedMs: number };

export type SweepOptions = {
  /** Younger blobs can belong to a transaction that has not been committed yet. */
  olderThanMs: number;
  /** Returns those of the names that a row refers to. */
  findReferenced: (blobs: readonly string[]) => Promise<ReadonlySet<string>>;
};

export type SweepResult = { readonly blobsRemoved: number; readonly partialsRemoved: number };

/**
 * Stores the content of files. Blobs are immutable, and their names are random, never built from user input. For an unknown
 * name, `read` and `readRange` throw not_found, and `remove` does nothing.
 */
export interface BlobStore {
  /** The ID of the store; null if it has none yet, such as an empty folder. */
  findId(): Promise<string | null>;
  /**
   * A random ID that is created once per store, by the first call or the first write. Processes compare it, so that two
   * stores never share a database.
   */
  storeId(): Promise<string>;
  /** False while the store is missing, or is not the one that was opened, because its volume was unmounted or replaced. */
  isAvailable(): Promise<boolean>;
  openWriter(options?: { sizeBytesMax?: number }): Promise<BlobWriter>;
  /**
   * Writes a whole source at the store's pace. Any error (of the source, the signal, the limit, the disk) is thrown after the
   * remains have been removed. Throws storage_full or payload_too_large.
   */
  put(source: AsyncIterable<Uint8Array>, options?: PutOptions): Promise<StoredBlob>;
  /**
   * Writes the contents of blobs, one after the other, to a new blob. They are read once, and `onBytes` gets their bytes. The
   * server of an object store copies them if it can. Throws storage_full.
   */
  join(
    parts: readonly { blob: string; sizeBytes: number }[],
    options?: { onBytes?: (bytes: Uint8Array) => void; leavesReserve?: boolean },
  ): Promise<StoredBlob>;
  /** Opens the blob before it resolves, so that a missing one is an error. The caller reads or destroys the stream. */
  read(blob: string, range?: { offset?: number; length?: number }): Promise<Readable>;
  /** Exactly `length` bytes from `offset`; fewer than that is an error. */
  readRange(blob: string, offset: number, length: number): Promise<Buffer>;
  remove(blob: string): Promise<void>;
  /** null for a blob that does not exist. */
  sizeOf(blob: string): Promise<number | null>;
  /** Every visible blob, in any order. */
  list(): AsyncIterable<BlobEntry>;
  /** Removes blobs that no row refers to, and remains of crashed writers. */
  sweep(options: SweepOptions): Promise<SweepResult>;
  /** The folder of this name, next to the blobs. */
  folder(name: string): BlobFolder;
}

/** The ID of a store, which \`create\` makes if \`read\` finds none. \`known\`: the first that was found. */
export async function openIdentity({
  read,
  create,
}: {
  read: () => Promise<string | null>;
  create: () => Promise<string>;
}): Promise<Pick<BlobStore, 'findId' | 'storeId' | 'isAvailable'>> {
  let id = await read();
  const findId = async (): Promise<string | null> => {
    const found = await read();
    id ??= found;
    return found;
  };
  return {
    findId,
    async isAvailable() {
      const found = await findId().catch(() => null);
      return found !== null && found === id;
    },
    storeId: async () => (id ??= await create()),
  };
}
