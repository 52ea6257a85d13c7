import type { LineRules } from './lines/check-line.ts';

/** The task of a thread: to check the lines of one slice. The bytes are shared memory, so nothing is copied. */
export type SliceTask = {
  bytes: Uint8Array;
  rules: SliceRules;
  /** Also return the custom IDs as text (for messages about a few lines). */
  withCustomIds: boolean;
};

export type SliceRules = LineRules & {
  lineBytesMax: number;
  /** The maximum of reported errors per slice. The rest is only counted. */
  errorsMax: number;
};

/** An error of a line; `line` counts the slice's lines from 0, blank ones included. */
export type SliceError = { line: number; code: string; message: string; param: string | null };

/** An estimate of the usage of the lines of one model. */
export type ModelUsage = {
  /** The name in the lines; null: they name no model, or use a prompt. */
  model: string | null;
  lines: number;
  inputTokens: number;
  /** The sum for the lines that set a maximum. */
  outputTokensMax: number;
  /** Lines that set no maximum, or whose request is not known before they are called. */
  unboundedLines: number;
};

/** The answer of a thread. Numbers are in packed arrays, without an object per line. */
export type SliceResult = {
  /** Lines, blank ones included. */
  lineCount: number;
  /** Per request line: start and end in the slice, and the number of its line in the slice from 0. */
  ranges: Uint32Array;
  /** Per request line: the first 16 bytes of the SHA-256 of its custom_id, four words; all zero when it has none. */
  digests: Uint32Array;
  /** Per request line: the hash of its bytes as a leaf of a tree (RFC 6962), 32 bytes. */
  leaves: Uint8Array;
  errors: SliceError[];
  errorCount: number;
  /** The model of all lines. null when they have none or differ. */
  model: string | null;
  /** The names of the prompts that lines use, each once. */
  prompts: string[];
  /** The estimated usage of its lines by model, if that was requested. */
  usage: ModelUsage[];
  /** JSON Schemas whose compilation was stopped. */
  timeouts: number;
  customIds: (string | null)[];
};

export const wordsPerRange = 3;
export const wordsPerDigest = 4;
export const bytesPerLeaf = 32;
