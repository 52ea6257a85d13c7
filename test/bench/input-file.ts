import { createWriteStream } from 'node:fs';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';

const words =
  'a shop sells twelve apples for three coins each and gives every fifth customer half of the price back how many ' +
  'coins does it take on a day with forty customers who buy two apples if nobody comes twice ';

/** A user's text of exactly this many characters, different for each line. */
export function promptOf(line: number, length: number): string {
  return `Question ${line}: ${words.repeat(Math.ceil(length / words.length))}`.slice(0, length);
}

/**
 * Writes a batch input with this many chat requests, each `lineBytes` long with its line feed. Returns its size in
 * bytes.
 */
export async function writeInputFile(
  file: string,
  { lines, lineBytes }: { lines: number; lineBytes: number },
): Promise<number> {
  const frame = (line: number, content: string): string =>
    `${JSON.stringify({
      custom_id: `request-${line}`,
      method: 'POST',
      url: '/v1/chat/completions',
      body: { model: 'sim-small', messages: [{ role: 'user', content }], temperature: 0 },
    })}\n`;
  let sizeBytes = 0;
  function* blocks(): Generator<string> {
    let block = '';
    for (let line = 1; line <= lines; line += 1) {
      block += frame(line, promptOf(line, lineBytes - frame(line, '').length));
      if (block.length < 1_048_576 && line < lines) continue;
      sizeBytes += block.length; // ASCII only
      yield block;
      block = '';
    }
  }
  await pipeline(Readable.from(blocks()), createWriteStream(file));
  return sizeBytes;
}
