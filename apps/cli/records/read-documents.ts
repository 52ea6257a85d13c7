import { readFile, stat } from 'node:fs/promises';
import { CliError, exitCodes } from '../server/cli-error.ts';
import { unreadableFile } from '../terminal/file-problem.ts';

const bytesMax = 16 * 1_048_576;

/**
 * The JSON or YAML documents of a file, or of stdin (`-`). `merge` resolves merge keys (`<<: *name`), which YAML 1.2 does not
 * have. Throws CliError if it is neither.
 */
export async function readDocuments(file: string, { merge = false } = {}): Promise<unknown[]> {
  const text = file === '-' ? await readStdin() : await readText(file);
  const { parseAllDocuments } = await import('yaml');
  const documents = parseAllDocuments(text, { prettyErrors: true, merge });
  return [...documents].flatMap((document) => {
    const [error] = document.errors;
    if (error)
      throw new CliError(
        `${file} is neither JSON nor YAML: ${(error.message.split('\n')[0] ?? '').replace(/:$/, '.')}`,
      );
    const value: unknown = document.toJS({ maxAliasCount: 100 });
    return value === null ? [] : [value];
  });
}

/** The one object of a file. Throws CliError if the file has no document or several, or if the document is not an object. */
export async function readObject(file: string, options: { merge?: boolean } = {}): Promise<Record<string, unknown>> {
  const documents = await readDocuments(file, options);
  const [first] = documents;
  if (documents.length === 1 && isObject(first)) return first;
  throw new CliError(`${file} must contain exactly one JSON or YAML object.`, { exitCode: exitCodes.usage });
}

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

async function readText(file: string): Promise<string> {
  try {
    if ((await stat(file)).size > bytesMax) throw new CliError(`${file} is larger than 16 MiB.`);
    return await readFile(file, 'utf8');
  } catch (error) {
    throw error instanceof CliError ? error : unreadableFile(file, error);
  }
}

async function readStdin(): Promise<string> {
  let text = '';
  for await (const piece of process.stdin.setEncoding('utf8')) {
    text += String(piece);
    if (text.length > bytesMax) throw new CliError('stdin is larger than 16 MiB.');
  }
  return text;
}
