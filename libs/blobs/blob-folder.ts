/**
 * A folder of files with names, such as `tile/0/001`. Unlike blobs, they can be replaced, and no sweep removes them. Names
 * are made by code, never from user input.
 */
export type BlobFolder = {
  /** Creates or replaces a file, which is complete and durable when this resolves. Throws storage_full. */
  write(path: string, bytes: Uint8Array): Promise<void>;
  /** null for a file that does not exist. */
  read(path: string): Promise<Buffer | null>;
  /** Removes all files below a path. */
  removeAll(path: string): Promise<void>;
};

/** Throws for a path that leaves its folder. */
export function assertPath(path: string): void {
  if (/^[\w.-]+(?:\/[\w.-]+)*$/.test(path) && !path.split('/').includes('..')) return;
  throw new Error(`not a path in a folder of files: ${JSON.stringify(path.slice(0, 64))}`);
}
