import { closeSync, fstatSync, mkdirSync, openSync, renameSync, writeSync } from 'node:fs';
import path from 'node:path';

export type LogFile = {
  file: string;
  /** Appends the text. If the disk is full, lines are lost; `onProblem` is called once until a write succeeds again. */
  write(text: string): void;
  close(): void;
};

/**
 * An append-only text file that is renamed to `<file>.1` before it would grow beyond `sizeBytesMax`, so that there are
 * at most two files of that size. Writes are synchronous, so that the last output of a process that died is in the
 * file. Throws if the file cannot be opened.
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
    // Readable by the owner only: the log has no prompts and keys, but it shows the callers and their targets.
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
        if (!failing) onProblem(`could not write ${file}: ${error instanceof Error ? error.message : 'unknown error'}`);
        failing = true;
      }
    },
  };
}
