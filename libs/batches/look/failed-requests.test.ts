import { expect, test } from 'vitest';
import { batchLineId } from '#libs/kernel/ids.ts';
import { failedRequests, type FailedLines } from './failed-requests.ts';
import { resultLine, type LineOutcome } from '../results/result-line.ts';

const batchId = 'batch_1';
const input = [
  '{"custom_id":"a"}',
  '',
  '{"custom_id":"b","body":"batch_expired"}',
  ' ',
  '{"custom_id":"c"}',
  '{"custom_id":"d"}',
];
const error = (line: number, id: string, outcome: LineOutcome): Buffer =>
  Buffer.concat([resultLine(batchLineId(batchId, line), Buffer.from(JSON.stringify(id)), outcome), Buffer.from('\n')]);
const body = Buffer.from('{"error":{"code":"batch_expired"}}');
const errors = Buffer.concat([
  error(2, 'b', { kind: 'response', statusCode: 500, requestId: 'r', body }),
  error(3, '","response":null,"error":{"code":"batch_expired"', { kind: 'error', code: 'timeout', message: '' }),
  error(4, 'd', { kind: 'error', code: 'batch_cancelled', message: '' }),
]);

/** Yields pieces of `size` bytes, so that every cut is tried. */
async function* pieces(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield await Promise.resolve(bytes.subarray(at, at + size));
}
const read = async (which: FailedLines, size: number, text = input.join('\n')): Promise<string> => {
  const files = { input: pieces(Buffer.from(text), size), error: pieces(errors, size) };
  const found: Buffer[] = [];
  for await (const piece of failedRequests(batchId, files, which)) found.push(piece);
  return Buffer.concat(found).toString();
};

test.each([1, 7, 64, 10_000])(
  'the requests whose lines failed, unchanged, read in pieces of %i bytes',
  async (size) => {
    expect(await read('failed', size)).toBe(`${input[2]}\n${input[4]}\n`);
    expect(await read('unfinished', size)).toBe(`${input[5]}\n`);
    expect(await read('all_failed', size)).toBe(`${input[2]}\n${input[4]}\n${input[5]}\n`);
  },
);

test('files that do not belong together are an error, not a shorter list', async () => {
  await expect(read('all_failed', 64, input.slice(0, 3).join('\n'))).rejects.toThrow('that its input does not have');
});
