import { readFileSync, statSync } from 'node:fs';
import { loadEnvFile } from 'node:process';
import { z } from 'zod';

declare module 'zod' {
  /** For docs/configuration.md. */
  interface GlobalMeta {
    /** The allowed values, in words. */
    range?: string;
    /** The text for the default if the schema has no default that reads well. */
    fallback?: string;
  }
}

/**
 * Reads the configuration of a process from the environment. Empty and blank strings count as absent. Throws
 * ConfigurationError that lists all problems together, by variable name and without values, which can be secrets. A main.ts
 * prints it and exits with status 1.
 */
export function readEnv<Schema extends z.ZodType>(
  schema: Schema,
  env: NodeJS.ProcessEnv = process.env,
): z.output<Schema> {
  const present = readFileVariables(env);
  const result = schema.safeParse(present);
  if (result.success) return result.data;
  const lines = result.error.issues.map((issue) => `  ${issue.path.join('.') || '(environment)'}: ${issue.message}`);
  throw new ConfigurationError(`The configuration is invalid:\n${lines.join('\n')}`);
}

/**
 * Variables with a secret. `<name>_FILE` can name a file with the value, because orchestrators mount secrets as files.
 */
export const fileVariables = [
  'DATABASE_URL',
  'SLUICE_DATABASE_DIRECT_URL',
  'SLUICE_MASTER_KEY',
  'SLUICE_AUDIT_KEY',
] as const;
const fileBytesMax = 65_536;

/**
 * The variables that are set, with the content of files instead of their names. Throws ConfigurationError for a file
 * that cannot be read, and for a variable that is set in both ways.
 */
export function readFileVariables(env: NodeJS.ProcessEnv): Record<string, string | undefined> {
  const present = Object.fromEntries(Object.entries(env).filter(([, value]) => (value ?? '').trim() !== ''));
  const problems: string[] = [];
  for (const name of fileVariables) {
    const file = present[`${name}_FILE`]?.trim();
    if (file === undefined) continue;
    delete present[`${name}_FILE`];
    if (present[name] !== undefined) {
      problems.push(`${name}_FILE: cannot be set together with ${name}. Remove one of the two`);
      continue;
    }
    const text = readSmallFile(file);
    if (text === null)
      problems.push(`${name}_FILE: must be the path of a readable, non-empty text file of at most 64 KiB`);
    else present[name] = text;
  }
  if (problems.length === 0) return present;
  throw new ConfigurationError(
    `The configuration is invalid:\n${problems.map((problem) => `  ${problem}`).join('\n')}`,
  );
}

function readSmallFile(file: string): string | null {
  try {
    const { size } = statSync(file);
    const text = size > fileBytesMax ? '' : readFileSync(file, 'utf8').trim();
    return text === '' ? null : text;
  } catch {
    return null;
  }
}

/** One variable of this process, read when it is needed. */
export const readVariable = (name: string): string | undefined => process.env[name];

/** The names of all variables of this process. */
export const variableNames = (): string[] => Object.keys(process.env);

/**
 * Adds the variables of a `.env` file in the current folder to those of the process, which take precedence. Returns
 * whether there is such a file. Throws ConfigurationError if it cannot be read.
 */
export function readEnvFile(): boolean {
  try {
    loadEnvFile('.env');
    return true;
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined;
    if (code === 'ENOENT') return false;
    throw new ConfigurationError(
      '.env in the current folder cannot be read. It must be a text file of NAME=value lines.',
    );
  }
}

export class ConfigurationError extends Error {
  override readonly name = 'ConfigurationError';
}

type Units = Readonly<Record<string, number>>;

/** A number in the largest of the units (listed in ascending order) that divides it, as a person would write it. */
function inLargestUnit(value: number, units: Units): string {
  const [unit, size] = Object.entries(units).findLast(([, each]) => value % each === 0 && value >= each) ?? ['', 1];
  return `${value / size}${unit}`;
}

/** A whole number with its bounds; `fallback` if the variable is absent. */
export const wholeNumber = (fallback: number, { min, max }: { min: number; max: number }) => {
  const range = `${min} to ${max}`;
  const rule = `must be a whole number from ${range}`;
  const isWithin = (value: number): boolean => Number.isInteger(value) && value >= min && value <= max;
  return z.coerce.number(rule).refine(isWithin, rule).default(fallback).meta({ range });
};

const units: Units = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A duration like `250ms`, `20s`, `10m`, `24h` or `30d`, in milliseconds. */
export const duration = (fallback: string, bounds: { minMs: number; maxMs: number }) => {
  const range = `${inLargestUnit(bounds.minMs, units)} to ${inLargestUnit(bounds.maxMs, units)}`;
  return z
    .string()
    .default(fallback)
    .transform((text, context) => {
      const match = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(text.trim());
      const ms = match ? Number(match[1]) * (units[match[2] ?? ''] ?? Number.NaN) : Number.NaN;
      if (Number.isFinite(ms) && ms >= bounds.minMs && ms <= bounds.maxMs) return ms;
      context.addIssue(`must be a duration like 250ms, 20s, 10m or 24h, from ${range}`);
      return z.NEVER;
    })
    .meta({ range });
};

const sizes: Units = { '': 1, KiB: 1_024, MiB: 1_048_576, GiB: 1_073_741_824 };

/** A size like `512KiB`, `64MiB`, `2GiB` or a plain number of bytes, in bytes. */
export const byteSize = (fallback: string, bounds: { minBytes: number; maxBytes: number }) => {
  const range = `${inLargestUnit(bounds.minBytes, sizes)} to ${inLargestUnit(bounds.maxBytes, sizes)}`;
  return z
    .string()
    .default(fallback)
    .transform((text, context) => {
      const match = /^(\d+)\s*(KiB|MiB|GiB|)$/.exec(text.trim());
      const bytes = match ? Number(match[1]) * (sizes[match[2] ?? ''] ?? Number.NaN) : Number.NaN;
      if (Number.isFinite(bytes) && bytes >= bounds.minBytes && bytes <= bounds.maxBytes) return bytes;
      context.addIssue(`must be a size like 512KiB, 64MiB or 2GiB, from ${range}`);
      return z.NEVER;
    })
    .meta({ range });
};
