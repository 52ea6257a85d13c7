import { closeSync, fstatSync, mkdirSync, openSync, renameSync, writeSync } from 'node:fs';
import path from 'node:path';

export type LogFile = {
  file: string;
  /** Appends the text. A full disk loses lines and is told to `onProblem` once, until a write succeeds again. */
  write(text: string): void;
  close(): void;
};

/**
 * An append-only text file that is renamed to `<file>.1` when it would grow past `sizeBytesMax`, so that two of that
 * size are kept at most. Writes are synchronous: what a child wrote just before it died is in the file.
 * Throws when the file cannot be opened.
 */
export function openLogFile(options: {
  file: string;
  sizeBytesMax: number;
  onProblem: (text: string) => void;
}): LogFile {
  const { file, sizeBytesMax, onProblem } = options;
  mkdirSync(path.dirname(file), { recursive: true, mode: 0o700 });
  let descriptor: number | undefined;
  let sizeBytes = 0;
  let failing = false;
  const open = (): number => {
    // Prompts and keys are never logged, but who calls what is nobody else's business either.
    const opened = openSync(file, 'a', 0o600);
    sizeBytes = fstatSync(opened).size;
    return opened;
  };
  const close = (): void => {
    if (descriptor !== undefined) closeSync(descriptor);
    descriptor = undefined;
  };
  descriptor = open();
  return {
    file,
    close,
    write(text) {
      const bytes = Buffer.from(text);
      try {
        if (descriptor !== undefined && sizeBytes > 0 && sizeBytes + bytes.length > sizeBytesMax) {
          close();
          renameSync(file, `${file}.1`);
        }
        descriptor ??= open();
        writeSync(descriptor, bytes);
        sizeBytes += bytes.length;
        failing = false;
      } catch (error) {
        if (!failing) onProblem(`cannot write ${file}: ${error instanceof Error ? error.message : 'unknown error'}`);
        failing = true;
      }
    },
  };
}
