import { expect, test } from 'vitest';
import { batchLineId } from '#libs/kernel/ids.ts';
import { readJsonLines, readResultLines } from './json-lines.ts';

async function* inPieces(text: string, size: number): AsyncGenerator<Buffer> {
  const bytes = Buffer.from(text);
  for (let from = 0; from < bytes.length; from += size) yield bytes.subarray(from, from + size);
}

async function collect<Value>(values: AsyncIterable<Value>): Promise<Value[]> {
  const found: Value[] = [];
  for await (const value of values) found.push(value);
  return found;
}

test('lines are read across pieces, blank ones are skipped, and one that is not JSON has no value', async () => {
  for (const size of [1, 3, 1_000]) {
    const lines = await collect(readJsonLines(inPieces('{"a":"ä"}\n\n \r\nnot\n[1]', size)));
    expect(lines.map(({ value }) => value)).toEqual([{ a: 'ä' }, undefined, [1]]);
  }
});

const answer = (line: number, text: string): string =>
  `{"id":"${batchLineId('batch_1', line)}","custom_id":"c${line}","response":{"status_code":200,"request_id":"r","body":{"text":"${text}"}},"error":null}\n`;
const failure = (line: number): string =>
  `{"id":"${batchLineId('batch_1', line)}","custom_id":"c${line}","response":null,"error":{"code":"x","message":"y"}}\n`;

test('the output and error files of a batch are read in the order of its lines', async () => {
  const files = [answer(1, 'one') + answer(3, 'three'), failure(2)].map((text) => readJsonLines(inPieces(text, 50)));
  expect(await collect(readResultLines({ id: 'batch_1', total: 3 }, files))).toEqual([
    { line: 1, customId: 'c1', status: 200, body: { text: 'one' } },
    { line: 2, customId: 'c2', status: 0, body: undefined },
    { line: 3, customId: 'c3', status: 200, body: { text: 'three' } },
  ]);
});

test('an answer that is too large keeps its custom_id and status, and the next line is read', async () => {
  const files = [readJsonLines(inPieces(answer(1, 'x'.repeat(3_000_000)) + answer(2, 'two'), 65_536))];
  expect(await collect(readResultLines({ id: 'batch_1', total: 2 }, files))).toEqual([
    { line: 1, customId: 'c1', status: 200, body: undefined },
    { line: 2, customId: 'c2', status: 200, body: { text: 'two' } },
  ]);
});
