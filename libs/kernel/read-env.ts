import { loadEnvFile } from 'node:process';
import { z } from 'zod';

/**
 * Reads the configuration of a process from the environment. Empty and blank strings count as absent.
 * Throws ConfigurationError that lists all problems at once, by variable name and without values, which may be secrets. A
 * main.ts prints it and exits with status 1.
 */
export function readEnv<Schema extends z.ZodType>(
  schema: Schema,
  env: NodeJS.ProcessEnv = process.env,
): z.output<Schema> {
  const present = Object.fromEntries(Object.entries(env).filter(([, value]) => (value ?? '').trim() !== ''));
  const result = schema.safeParse(present);
  if (result.success) return result.data;
  const lines = result.error.issues.map((issue) => `  ${issue.path.join('.') || '(environment)'}: ${issue.message}`);
  throw new ConfigurationError(`The configuration is invalid:\n${lines.join('\n')}`);
}

/** One variable of this process, read when it is needed. */
export const readVariable = (name: string): string | undefined => process.env[name];

/** The names of all variables of this process. */
export const variableNames = (): string[] => Object.keys(process.env);

/**
 * Adds the variables of a `.env` file in the current folder to those of the process, which win. Returns whether there is
 * such a file. Throws ConfigurationError if it cannot be read.
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

/** A whole number with its bounds; `fallback` if the variable is absent. */
export const wholeNumber = (fallback: number, { min, max }: { min: number; max: number }) => {
  const rule = `must be a whole number from ${min} to ${max}`;
  const isWithin = (value: number): boolean => Number.isInteger(value) && value >= min && value <= max;
  return z.coerce.number(rule).refine(isWithin, rule).default(fallback);
};

const units: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A duration like `250ms`, `20s`, `10m`, `24h` or `30d`, in milliseconds. */
export const duration = (fallback: string, bounds: { minMs: number; maxMs: number }) =>
  z
    .string()
    .default(fallback)
    .transform((text, context) => {
      const match = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(text.trim());
      const ms = match ? Number(match[1]) * (units[match[2] ?? ''] ?? Number.NaN) : Number.NaN;
      if (Number.isFinite(ms) && ms >= bounds.minMs && ms <= bounds.maxMs) return ms;
      context.addIssue(`must be a duration like 250ms, 20s, 10m or 24h, from ${bounds.minMs} ms to ${bounds.maxMs} ms`);
      return z.NEVER;
    });

const sizes: Record<string, number> = { '': 1, KiB: 1_024, MiB: 1_048_576, GiB: 1_073_741_824 };

/** A size like `512KiB`, `64MiB`, `2GiB` or a plain number of bytes, in bytes. */
export const byteSize = (fallback: string, bounds: { minBytes: number; maxBytes: number }) =>
  z
    .string()
    .default(fallback)
    .transform((text, context) => {
      const match = /^(\d+)\s*(KiB|MiB|GiB|)$/.exec(text.trim());
      const bytes = match ? Number(match[1]) * (sizes[match[2] ?? ''] ?? Number.NaN) : Number.NaN;
      if (Number.isFinite(bytes) && bytes >= bounds.minBytes && bytes <= bounds.maxBytes) return bytes;
      context.addIssue(
        `must be a size like 512KiB, 64MiB or 2GiB, from ${bounds.minBytes} to ${bounds.maxBytes} bytes`,
      );
      return z.NEVER;
    });
