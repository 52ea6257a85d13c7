import { readSource } from './source-files.ts';

/** The blocks of commands on a page, by the heading that they are below. Others can be below headings without blocks. */
export function readCommands(page: string): Map<string, string[]> {
  const sections = readSource(page).split(/^## /m).slice(1);
  return new Map(
    sections.map((text): [string, string[]] => [
      text.slice(0, text.indexOf('\n')),
      [...text.matchAll(/^ *```sh\n(.*?)^ *```$/gms)].map(([, commands = '']) => commands),
    ]),
  );
}
