import { GatewayError } from '#libs/kernel/errors.ts';

const [quote, backslash, openBrace, closeBrace, openBracket, closeBracket, comma] = Buffer.from('"\\{}[],');
const isSpace = (byte: number): boolean => byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09;

/** What precedes the first element, with any spaces, has less than this. */
const headBytesMax = 1_024;

/**
 * The objects in the one member of a body, `{"<member>": [{…}, {…}]}`, as their bytes, however long the whole is. Uses memory
 * for one element and one chunk. Whether an element is well-formed inside is left to its reader. Throws invalid_request for a
 * body in another form, one that ends early, and an element above `elementBytesMax`.
 */
export async function* readElements(
  source: AsyncIterable<Buffer>,
  {
    member,
    elementBytesMax,
    onKept = () => {},
  }: {
    member: string;
    elementBytesMax: number;
    /** Called with the bytes of an unfinished element that are kept in addition, or no longer if negative. Can throw. */
    onKept?: (bytes: number) => void;
  },
): AsyncGenerator<Buffer> {
  const head = new RegExp(`^\\s*\\{\\s*"${member}"\\s*:\\s*\\[`);
  const refuse = (what: string): GatewayError =>
    new GatewayError('invalid_request', 'invalid_json', `The body must be {"${member}": [{…}, {…}]}: ${what}.`, {
      param: member,
    });
  let state: 'head' | 'between' | 'element' | 'tail' = 'head';
  let start = Buffer.alloc(0);
  let kept: Buffer[] = [];
  let keptBytes = 0;
  let depth = 0;
  let inString = false;
  let isEscaped = false;
  let isFirst = true;
  let wantsElement = true;
  let tail = '';
  for await (const chunk of source) {
    let bytes = chunk;
    let at = 0;
    if (state === 'head') {
      start = Buffer.concat([start, chunk]);
      const found = head.exec(start.toString('latin1', 0, headBytesMax));
      if (found === null) {
        if (start.length >= headBytesMax) throw refuse(`it does not begin with the member '${member}'`);
        continue;
      }
      bytes = start;
      at = found[0].length;
      state = 'between';
    }
    let from = at;
    for (; at < bytes.length; at += 1) {
      const byte = bytes[at] as number;
      if (state === 'element') {
        if (inString) {
          if (isEscaped) isEscaped = false;
          else if (byte === backslash) isEscaped = true;
          else if (byte === quote) inString = false;
        } else if (byte === quote) inString = true;
        else if (byte === openBrace || byte === openBracket) depth += 1;
        else if (byte === closeBrace || byte === closeBracket) depth -= 1;
        if (depth > 0) continue;
        kept.push(bytes.subarray(from, at + 1));
        yield Buffer.concat(kept);
        kept = [];
        onKept(-keptBytes);
        keptBytes = 0;
        state = 'between';
        wantsElement = false;
      } else if (isSpace(byte)) continue;
      else if (state === 'tail') tail += String.fromCharCode(byte);
      else if (byte === comma && !wantsElement) wantsElement = true;
      else if (byte === openBrace && wantsElement) {
        state = 'element';
        isFirst = false;
        depth = 1;
        from = at;
      } else if (byte === closeBracket && (isFirst || !wantsElement)) state = 'tail';
      else throw refuse('an object, or the end of the list, was expected');
      if (tail.length > 1) break;
    }
    if (state === 'element') {
      kept.push(bytes.subarray(from));
      keptBytes += bytes.length - from;
      onKept(bytes.length - from);
      if (keptBytes > elementBytesMax) throw refuse(`an item has more than ${elementBytesMax} bytes`);
    }
  }
  if (state !== 'tail' || tail !== '}') throw refuse(state === 'tail' ? 'it has other members' : 'it ends too early');
  if (isFirst) throw refuse('the list is empty');
}
