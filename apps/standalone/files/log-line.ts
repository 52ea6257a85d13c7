import { levels } from 'pino';
import { z } from 'zod';

/** The numbers of pino's levels. */
export const severe = { warn: 40, error: 50 } as const;

const LogRecord = z.looseObject({
  level: z.string(),
  msg: z.string().default(''),
  err: z.union([z.looseObject({ message: z.string() }), z.string()]).optional(),
});

/** Not shown on the terminal: process and time are known there, and stacks are in the file. */
const unshown = new Set(['level', 'time', 'process', 'pid', 'version', 'name', 'msg', 'err']);
const wordsLengthMax = 500;

/**
 * Makes a log line readable: a JSON line becomes `message: error (field=value, …)`. Any other line (a crash of Node, a
 * configuration error) is shown unchanged and counts as an error.
 */
export function readLogLine(text: string): { level: number; words: string } {
  const record = LogRecord.safeParse(parseJson(text));
  if (!record.success) return { level: severe.error, words: printable(text) };
  const { level, msg, err } = record.data;
  const fields = Object.entries(record.data)
    .filter(([name]) => !unshown.has(name))
    .map(([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`);
  const words = [
    msg,
    err === undefined ? '' : `: ${typeof err === 'string' ? err : err.message}`,
    fields.length === 0 ? '' : ` (${fields.join(', ')})`,
  ].join('');
  return { level: levels.values[level] ?? severe.error, words: printable(words) };
}

function parseJson(text: string): unknown {
  if (!text.startsWith('{')) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Removes control characters: a logged text must not be able to control the terminal. */
function printable(text: string): string {
  const clean = text.replaceAll(/[\p{Cc}\p{Cf}]+/gu, ' ').trimEnd();
  return clean.length > wordsLengthMax ? `${clean.slice(0, wordsLengthMax)}…` : clean;
}
