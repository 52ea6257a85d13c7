import type { Readable } from 'node:stream';

/** What a finished write left behind. `blob` is an opaque random name; `sha256` is 64 hex digits. */
export type StoredBlob = { readonly blob: string; readonly sizeBytes: number; readonly sha256: string };

/**
 * One blob being written. Nothing is visible before `commit` resolves, and then it is durable. A write that fails has
 * removed its remains; so has `abort`, which may be called at any time, also twice or after `commit` (then it does
 * nothing).
 */
export type BlobWriter = {
  /** Resolves when the store can take more. One call at a time. Throws storage_full, payload_too_large. */
  write: (chunk: Uint8Array) => Promise<void>;
  /** Throws storage_full; resolves with the same value when called again. */
  commit: () => Promise<StoredBlob>;
  abort: () => Promise<void>;
};

export type PutOptions = {
  sizeBytesMax?: number;
  signal?: AbortSignal;
  /** Stops with storage_full where the store would have less free than it keeps for results. */
  leavesReserve?: boolean;
};

export type BlobEntry = { readonly blob: string; readonly sizeBytes: number; readonly modifiedMs: number };

export type SweepOptions = {
  /** Younger blobs may belong to a transaction that has not committed yet. */
  olderThanMs: number;
  /** Of these names, the ones that a row still refers to. */
  findReferenced: (blobs: readonly string[]) => Promise<ReadonlySet<string>>;
};

export type SweepResult = { readonly blobsRemoved: number; readonly partialsRemoved: number };

/**
 * Where files live. Blobs are immutable; their names are random and never made from what a user sent.
 * An unknown name throws not_found from `read` and `readRange`, and is nothing to `remove`.
 */
export interface BlobStore {
  /** A random id made once per store; processes compare it so that two never share a database over two stores. */
  storeId(): Promise<string>;
  openWriter(options?: { sizeBytesMax?: number }): Promise<BlobWriter>;
  /**
   * Writes a whole source, at the store's pace. Whatever goes wrong (the source, the signal, the limit, the disk) is
   * thrown after the remains are removed. Throws storage_full, payload_too_large.
   */
  put(source: AsyncIterable<Uint8Array>, options?: PutOptions): Promise<StoredBlob>;
  /** Opens before it resolves, so that a missing blob is an error and not a broken answer. The caller consumes or destroys it. */
  read(blob: string, range?: { offset?: number; length?: number }): Promise<Readable>;
  /** Exactly `length` bytes from `offset`; fewer than that is an error. */
  readRange(blob: string, offset: number, length: number): Promise<Buffer>;
  remove(blob: string): Promise<void>;
  /** Every visible blob, in no order. */
  list(): AsyncIterable<BlobEntry>;
  /** Removes blobs that nobody refers to, and what crashed writers left. */
  sweep(options: SweepOptions): Promise<SweepResult>;
}
