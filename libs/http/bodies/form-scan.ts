/** The position of the text part `model` in a form: its bytes from `start` to `end`, counted from the form's first. */
export type FoundModel = { text: string; start: number; end: number };

const partHeaderBytesMax = 8_192;
const modelBytesMax = 512;
const headerEnd = Buffer.from('\r\n\r\n');

/**
 * Looks for the text part `model` in a form that arrives in pieces (RFC 7578). Retains only the end of the last piece.
 * `push` returns true when the search is over: the part was found, the form has ended or is malformed, or a file begins
 * while `stopsAtFile` is set.
 */
export function createFormScan(
  boundary: string,
  stopsAtFile: boolean,
): { push: (chunk: Buffer) => boolean; found: () => FoundModel | null } {
  const delimiter = Buffer.from(`\r\n--${boundary}`);
  let state: 'headers' | 'model' | 'other' | 'done' = 'other';
  // The first delimiter does not need a preceding line break.
  let rest: Buffer = Buffer.from('\r\n');
  /** Number of bytes of the form before `rest`. */
  let at = -rest.length;
  let isFirst = true;
  let found: FoundModel | null = null;

  const drop = (bytes: number): void => {
    rest = rest.subarray(bytes);
    at += bytes;
  };

  /** One step; false if it needs more bytes. */
  const step = (): boolean => {
    if (state === 'headers') {
      // A part begins after the line of its delimiter. `--` after a delimiter ends the form.
      if (rest.length < 2) return false;
      const isPart = rest[0] === 0x0d && rest[1] === 0x0a;
      const end = isPart ? rest.indexOf(headerEnd) : -1;
      if (!isPart || (end === -1 && rest.length > partHeaderBytesMax)) state = 'done';
      if (end === -1) return false;
      const { name, isFile } = readDisposition(rest.toString('latin1', 0, end));
      drop(end + headerEnd.length);
      if (isFile && stopsAtFile) {
        state = 'done';
        return false;
      }
      state = name === 'model' && !isFile ? 'model' : 'other';
      return true;
    }
    const end = rest.indexOf(delimiter);
    if (state === 'model') {
      if (end > modelBytesMax || (end === -1 && rest.length > modelBytesMax + delimiter.length)) state = 'done';
      else if (end !== -1) {
        found = { text: rest.toString('utf8', 0, end), start: at, end: at + end };
        state = 'done';
      }
      return false;
    }
    // If other bytes precede the first delimiter, the body is not a form.
    if (isFirst && end !== 0 && rest.length >= delimiter.length) {
      state = 'done';
      return false;
    }
    if (end === -1) {
      if (!isFirst) drop(Math.max(0, rest.length - delimiter.length));
      return false;
    }
    isFirst = false;
    drop(end + delimiter.length);
    state = 'headers';
    return true;
  };

  return {
    push(chunk) {
      if (state !== 'done') rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
      let goesOn = state !== 'done';
      while (goesOn) goesOn = step();
      return state === 'done';
    },
    found: () => found,
  };
}

function readDisposition(headers: string): { name: string | null; isFile: boolean } {
  const line = /^content-disposition:(.*)$/im.exec(headers)?.[1] ?? '';
  const [, quoted, plain] = /;\s*name=(?:"([^"]*)"|([^\s;"]+))/i.exec(line) ?? [];
  return { name: quoted ?? plain ?? null, isFile: /;\s*filename\*?=/i.test(line) };
}
