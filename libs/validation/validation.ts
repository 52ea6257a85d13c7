import type { PublicNames } from '#libs/contracts/configs/public-models.ts';
import type { BatchEndpoint, BatchError } from '#libs/contracts/batches/batches.ts';
import type { KnownPrompt } from './lines/check-prompt-line.ts';
import type { ModelUsage } from './slice-task.ts';
import type { Chunk } from './chunk-table.ts';

export type ValidationLimits = {
  /** The maximum size of one line, without its line end. */
  lineBytesMax: number;
  /** The maximum nesting of arrays and objects in a line. Providers have lower limits. */
  depthMax: number;
  /** The maximum length of a custom_id, in UTF-16 units. */
  customIdLengthMax: number;
  /** The maximum size of a JSON Schema in `response_format`, as JSON. */
  schemaBytesMax: number;
  /** How long such a schema can take to compile. */
  schemaTimeoutMs: number;
  /** The bytes of one slice for a thread: large enough to make the handover cheap, small enough to use all threads. */
  sliceBytes: number;
  /** Time for a slice, after which its thread is killed and its lines are checked one by one. */
  sliceTimeoutMs: number;
  /** Time for one line when lines are checked one by one. */
  lineTimeoutMs: number;
  /** The maximum of reported errors. The rest is only counted. */
  errorsMax: number;
  /**
   * The maximum of schemas that time out plus lines that kill a thread, per file. Each costs a core a second or more.
   */
  costlyLinesMax: number;
  /** Hashes of custom_ids in memory for one file, about 24 bytes each. More are written to temporary files. */
  digestsInMemoryMax: number;
};

export const defaultLimits: ValidationLimits = {
  lineBytesMax: 4 * 1_048_576,
  depthMax: 64,
  customIdLengthMax: 512,
  schemaBytesMax: 64 * 1_024,
  schemaTimeoutMs: 1_000,
  sliceBytes: 262_144,
  sliceTimeoutMs: 30_000,
  lineTimeoutMs: 5_000,
  errorsMax: 100,
  costlyLinesMax: 20,
  digestsInMemoryMax: 4_000_000,
};

export type ValidationInput = {
  /** Opens the file from its start. Called a second time if there are duplicates, to quote their custom_ids. */
  open: () => AsyncIterable<Buffer>;
  endpoint: BatchEndpoint;
  /** Without a default target every line must have `model: "@virtual-key/model"`. */
  hasDefaultTarget: boolean;
  /** Slugs of the virtual keys that a line's model can name; null allows any. */
  virtualKeys: ReadonlySet<string> | null;
  /** The public models that a line can name if there is no default target. Absent: none. */
  publicNames?: PublicNames | undefined;
  /** Providers without the endpoint: by the slug of their virtual key, and by `null` for the batch's own target. */
  unable: ReadonlyMap<string | null, string>;
  /** Prompts that a line can use, by slug and ID. Absent: lines cannot use prompts. */
  prompts?: ReadonlyMap<string, KnownPrompt>;
  /** Leaves out the checks of bodies and models, which then follow when a line is called. Prompts are still checked. */
  withoutBodies?: boolean;
  /** The maximum of requests in the file; null for no limit. */
  linesMax: number | null;
  linesPerChunk: number;
  /** The maximum bytes of a chunk. A chunk of a single line can be larger. */
  chunkBytesMax: number;
  /** Whether the result has an estimate of the lines' usage. */
  estimatesUsage?: boolean;
  /** When this aborts, the check ends with the lines that it has read. */
  enough?: AbortSignal;
  signal?: AbortSignal;
  /** Gets the leaf hashes of the request lines, slice by slice, in the order of the file. */
  onLeaves?: (leaves: Uint8Array) => void;
  onProgress?: (progress: { bytes: number; lines: number }) => void;
};

/**
 * `lineCount` counts requests (lines that are not blank), in an invalid file those counted until the check ended.
 * `model` is the model of all lines, null when they differ; `prompts` are the names of those that lines use. `isWhole`
 * is false if `enough` ended the check before the end of the file; `usage` is only present if it was requested. Errors
 * have the 1-based line of the file (blank lines count), or null for the file as a whole. They are sorted by line. If
 * there are more than are reported, the last item contains their number.
 */
export type ValidationResult =
  | (Checked & { valid: true; chunks: Chunk[]; model: string | null; prompts: string[] })
  | (Checked & { valid: false; errors: BatchError[] });

type Checked = { lineCount: number; isWhole: boolean; usage: ModelUsage[] };
