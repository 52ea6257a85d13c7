/** The names that fences use for a language that has several. */
const otherNames: readonly (readonly string[])[] = [
  ['javascript', 'js', 'jsx', 'mjs', 'cjs', 'node'],
  ['typescript', 'ts', 'tsx'],
  ['python', 'py', 'python3'],
  ['c#', 'csharp', 'cs'],
  ['c++', 'cpp', 'cxx', 'cc'],
  ['go', 'golang'],
  ['ruby', 'rb'],
  ['rust', 'rs'],
  ['kotlin', 'kt', 'kts'],
  ['bash', 'sh', 'shell', 'zsh'],
  ['sql', 'mysql', 'postgresql', 'postgres', 'plsql', 'tsql', 'sqlite'],
  ['html', 'htm'],
  ['yaml', 'yml'],
  ['perl', 'pl'],
  ['powershell', 'ps1', 'pwsh'],
];

const namesOf = (language: string): readonly string[] =>
  otherNames.find((names) => names.includes(language)) ?? [language];

/**
 * Whether a text has a fenced block (CommonMark 4.5) of this language, according to its fence, in upper or lower case.
 * A block that was cut off counts as well. Takes linear time.
 */
export function hasCode(text: string, language: string): boolean {
  const wanted = namesOf(language.trim().toLowerCase());
  let fence: string | null = null;
  for (let start = 0; start <= text.length;) {
    const end = text.indexOf('\n', start);
    const stop = end === -1 ? text.length : end;
    // Longer than any fence with its language.
    const line = text.slice(start, Math.min(stop, start + 200)).trim();
    const marks = /^(?:`{3,}|~{3,})/.exec(line)?.[0];
    if (marks !== undefined) {
      const named = line.slice(marks.length).trim();
      if (fence === null) {
        const [name = ''] = named.toLowerCase().split(/[\s,{:]/);
        if (wanted.includes(name)) return true;
        fence = marks;
      } else if (named === '' && marks.startsWith(fence)) fence = null;
    }
    if (end === -1) return false;
    start = end + 1;
  }
  return false;
}
