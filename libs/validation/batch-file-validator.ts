import { tmpdir } from 'node:os';
import type { BatchEndpoint, BatchError } from '#libs/contracts/batches.ts';
import { threadsByDefault } from '#libs/threads/thread-lane.ts';
import type { Chunk } from './chunk-table.ts';
import { createSlicePool } from './slice-pool.ts';
import { validateFile } from './validate-file.ts';

export type ValidationLimits = {
  /** One line of a file, without its line end. */
  lineBytesMax: number;
  /** Nesting of arrays and objects in a line; providers' own limits are lower. */
  depthMax: number;
  /** A custom_id, in UTF-16 units. */
  customIdLengthMax: number;
  /** A JSON Schema in `response_format`, as JSON. */
  schemaBytesMax: number;
  /** Time for such a schema to compile. */
  schemaTimeoutMs: number;
  /** Bytes handed to a thread at once: large enough to make the hand-over cheap, small enough to share out. */
  sliceBytes: number;
  /** Time for a slice, after which its thread is killed and its lines are checked one by one. */
  sliceTimeoutMs: number;
  /** Time for one line then. */
  lineTimeoutMs: number;
  /** Errors that are told; the rest is counted. */
  errorsMax: number;
  /** Schemas that time out and lines that kill a thread, in one file; each costs a second or more of a core. */
  costlyLinesMax: number;
  /** Hashes of custom_ids kept in memory for one file, about 24 bytes each; more go to temporary files. */
  digestsInMemoryMax: number;
};

export const defaultLimits: ValidationLimits = {
  lineBytesMax: 4 * 1_048_576,
  depthMax: 64,
  customIdLengthMax: 512,
  schemaBytesMax: 64 * 1_024,
  schemaTimeoutMs: 1_000,
  sliceBytes: 1_048_576,
  sliceTimeoutMs: 30_000,
  lineTimeoutMs: 5_000,
  errorsMax: 100,
  costlyLinesMax: 20,
  digestsInMemoryMax: 4_000_000,
};

export type ValidationInput = {
  /** The file's bytes from its start. Called a second time when there are duplicates, to quote their custom_ids. */
  open: () => AsyncIterable<Buffer>;
  endpoint: BatchEndpoint;
  /** Without a default target every line must have `model: "@virtual-key/model"`. */
  hasDefaultTarget: boolean;
  /** Slugs of the virtual keys that a line's model may name; null: whichever it names. */
  virtualKeys: ReadonlySet<string> | null;
  /** Providers that lack the endpoint: by the slug of their virtual key, and of the batch's own target by `null`. */
  unable: ReadonlyMap<string | null, string>;
  /** Requests in the file; null for no limit. */
  linesMax: number | null;
  linesPerChunk: number;
  /** Bytes of a chunk; a single line may have more. */
  chunkBytesMax: number;
  signal?: AbortSignal;
  onProgress?: (progress: { bytes: number; lines: number }) => void;
};

/**
 * `lineCount` counts requests (lines that are not blank); in an invalid file it is what was counted until the check
 * ended. `model` is the one that all lines have, null when they differ.
 * Errors carry the 1-based line of the file (blank lines counted), null for the file as a whole; they are sorted by
 * line, and when there are more than told, a last item says how many.
 */
export type ValidationResult =
  | { valid: true; lineCount: number; chunks: Chunk[]; model: string | null }
  | { valid: false; lineCount: number; errors: BatchError[] };

export type BatchFileValidator = {
  /**
   * Checks an input file of a batch (LINE-3, LINE-4) in threads, streaming it: memory does not grow with the
   * file but for its chunk table and hashes. What is wrong with the file is the result; throws only what `open`
   * throws, the reason of an aborted `signal`, and GatewayError `unavailable` when no thread can do its work.
   */
  validate(input: ValidationInput): Promise<ValidationResult>;
  /** Ends the threads; validations under way fail. */
  stop(): Promise<void>;
};

type Options = {
  /** By default as many as cores less one. */
  threads?: number;
  threadMemoryMb?: number;
  idleTimeoutMs?: number;
  limits?: Partial<ValidationLimits>;
  /** Where hashes of very large files go for the time of the check. */
  temporaryDirectory?: string;
};

/** The threads start with the first file, serve all files, and end when idle. */
export function createBatchFileValidator(options: Options = {}): BatchFileValidator {
  const threads = options.threads ?? threadsByDefault();
  // The worst line of 4 MiB takes some 150 MB when parsed. The limit stands far above that, because Node may end the
  // whole process, not the thread, when a thread's heap is full: sizes and times are what bounds a line.
  const threadMemoryMb = options.threadMemoryMb ?? 512;
  // With less, V8 runs out while it starts the thread, and ends the process.
  if (threadMemoryMb < 256) throw new Error(`a validation thread needs at least 256 MB, not ${threadMemoryMb}`);
  // An idle thread holds 37 MB, while the batch that it was for runs; to start one takes 0.2 s.
  const pool = createSlicePool({ threads, threadMemoryMb, idleTimeoutMs: options.idleTimeoutMs ?? 5_000 });
  const limits = { ...defaultLimits, ...options.limits };
  const temporaryDirectory = options.temporaryDirectory ?? tmpdir();
  return {
    // One slice more than threads is in flight, so that no thread waits for the next.
    validate: (input) =>
      validateFile(input, { pool: pool.forFile(), limits, temporaryDirectory, slicesInFlight: threads + 1 }),
    stop: () => pool.stop(),
  };
}
