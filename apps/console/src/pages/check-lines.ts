/** A problem in a line of an input file that was found before the file is sent. */
export type LineProblem = { line: number; text: string };
export type FileCheck = {
  lines: number;
  models: string[];
  endpoint: string | null;
  problems: LineProblem[];
  problemCount: number;
};

const problemsShown = 50;
const lineBytesMax = 10 * 1024 * 1024;
/** Beyond this number, the server finds repeated IDs, because it does not have to hold them in a browser's memory. */
const idsMax = 2_000_000;

/** The number of lines between two pauses, in which the page can react to its user. */
const linesAtOnce = 2_000;
const pause = (): Promise<void> => new Promise((resolve) => void setTimeout(resolve));

/**
 * Reads an input file of any size piece by piece and checks each line as far as possible without the server: that it is a
 * JSON object with a unique ID, and that all lines name the same endpoint. `onProgress` gets the fraction that was read.
 */
export async function checkLines(file: Blob, onProgress: (share: number) => void): Promise<FileCheck> {
  const problems: LineProblem[] = [];
  let problemCount = 0;
  let lines = 0;
  let endpoint: string | null = null;
  const ids = new Set<string>();
  const models = new Set<string>();
  const report = (line: number, text: string): void => {
    problemCount += 1;
    if (problems.length < problemsShown) problems.push({ line, text });
  };
  const check = (text: string, line: number): void => {
    if (text.trim() === '') return;
    lines += 1;
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch (error) {
      return report(line, `is not valid JSON: ${(error as Error).message}`);
    }
    if (typeof value !== 'object' || value === null || Array.isArray(value))
      return report(line, 'is not a JSON object');
    const { custom_id: id, method, url, body } = value as Record<string, unknown>;
    if (typeof id !== 'string' || id === '') return report(line, 'has no "custom_id"');
    if (ids.has(id))
      report(line, `uses the custom_id ${JSON.stringify(id.slice(0, 60))} of an earlier line; each line needs its own`);
    else if (ids.size < idsMax) ids.add(id);
    if (method !== undefined && method !== 'POST') return report(line, 'has a "method" other than "POST"');
    if (typeof url !== 'string') return report(line, 'has no "url", such as /v1/chat/completions');
    if (endpoint === null) endpoint = url;
    else if (url !== endpoint)
      return report(
        line,
        `has the "url" ${url.slice(0, 60)}, but earlier lines have ${endpoint}; all lines must have the same`,
      );
    if (typeof body !== 'object' || body === null || Array.isArray(body)) return report(line, 'has no "body" object');
    const { model } = body as { model?: unknown };
    if (typeof model === 'string' && models.size < 20) models.add(model);
  };

  const decoder = new TextDecoder('utf-8', { fatal: false });
  const reader = file.stream().getReader();
  let rest = '';
  let number = 0;
  let readBytes = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    readBytes += value.length;
    const parts = (rest + decoder.decode(value, { stream: true })).split('\n');
    rest = parts.pop() ?? '';
    for (const part of parts) {
      check(part, (number += 1));
      if (number % linesAtOnce === 0) await pause();
    }
    if (rest.length > lineBytesMax) {
      report(number + 1, 'is longer than 10 MiB');
      await reader.cancel();
      break;
    }
    onProgress(readBytes / file.size);
  }
  if (rest !== '' && rest.length <= lineBytesMax) check(rest, number + 1);
  if (lines === 0) report(1, 'is missing: the file is empty');
  return { lines, models: [...models], endpoint, problems, problemCount };
}
