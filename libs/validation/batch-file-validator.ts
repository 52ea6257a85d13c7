import { tmpdir } from 'node:os';
import { threadsByDefault } from '#libs/threads/thread-lane.ts';
import { createSlicePool } from './slice-pool.ts';
import { validateFile } from './validate-file.ts';
import { defaultLimits, type ValidationInput, type ValidationLimits, type ValidationResult } from './validation.ts';

export type BatchFileValidator = {
  /**
   * Checks an input file of a batch (LINE-3, LINE-4) in threads, streaming it: memory does not grow with the file
   * except for its chunk table and hashes. The problems of the file are the result. Throws only the errors of `open`,
   * the reason of an aborted `signal`, and GatewayError `unavailable` when no thread can do its work.
   */
  validate(input: ValidationInput): Promise<ValidationResult>;
  /** Ends the threads. Running validations fail. */
  stop(): Promise<void>;
};

type Options = {
  /** Default: one less than the number of cores. */
  threads?: number;
  threadMemoryMb?: number;
  idleTimeoutMs?: number;
  /** Whether short files are checked on the event loop. Default: false. */
  usesLoop?: boolean;
  limits?: Partial<ValidationLimits>;
  /** The folder for the hashes of very large files during the check. */
  temporaryDirectory?: string;
};

/** The threads start with the first file, are shared by all files, and end when idle. */
export function createBatchFileValidator(options: Options = {}): BatchFileValidator {
  const threads = options.threads ?? threadsByDefault();
  // The worst line of 4 MiB takes about 150 MB when parsed. The limit is far above that, because Node sometimes ends
  // the whole process, not just the thread, when a thread's heap is full. Lines are limited by size and time instead.
  const threadMemoryMb = options.threadMemoryMb ?? 512;
  // With less, V8 runs out of memory while it starts the thread and ends the process.
  if (threadMemoryMb < 256) throw new Error(`a validation thread needs at least 256 MB, not ${threadMemoryMb}`);
  // An idle thread takes 37 MB, and starting one takes 0.2 s.
  const { idleTimeoutMs = 1_000, usesLoop = false } = options;
  const pool = createSlicePool({ threads, threadMemoryMb, idleTimeoutMs, usesLoop });
  const limits = { ...defaultLimits, ...options.limits };
  const temporaryDirectory = options.temporaryDirectory ?? tmpdir();
  return {
    // One more slice than threads is in flight, so that no thread has to wait for the next one.
    validate: (input) =>
      validateFile(input, { pool: pool.forFile(), limits, temporaryDirectory, slicesInFlight: threads + 1 }),
    stop: () => pool.stop(),
  };
}
