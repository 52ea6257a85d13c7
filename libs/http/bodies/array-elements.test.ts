import { describe, expect, test } from 'vitest';
import { readElements } from './array-elements.ts';

const limits = { member: 'requests', elementBytesMax: 1_000 };

async function read(text: string, chunkBytes = text.length, elementBytesMax = 1_000): Promise<string[]> {
  const bytes = Buffer.from(text);
  async function* chunks(): AsyncGenerator<Buffer> {
    for (let from = 0; from < bytes.length; from += chunkBytes) yield bytes.subarray(from, from + chunkBytes);
  }
  const found: string[] = [];
  for await (const element of readElements(chunks(), { ...limits, elementBytesMax })) found.push(element.toString());
  return found;
}

const elements = ['{"a":"}]\\"{ü"}', '{}', '{"b":[{"c":[1]}],\n"d":"\\\\"}'];
const whole = ` { "requests" :\n[${elements.join(' ,\t')}\r\n] } `;

test.each([1, 2, 3, 5, 1_000])('returns the bytes of each element, with chunks of %i bytes', async (chunkBytes) => {
  expect(await read(whole, chunkBytes)).toEqual(elements);
});

test('reports what it keeps of elements that have not arrived', async () => {
  async function* chunks(): AsyncGenerator<Buffer> {
    for (const text of ['{"requests":[{"a":', '"12345', '6"}, {', '}]}']) yield Buffer.from(text);
  }
  const kept: number[] = [];
  const options = { ...limits, onKept: (bytes: number) => void kept.push(bytes) };
  for await (const _element of readElements(chunks(), options));
  expect(kept).toEqual([5, 6, -11, 1, -1]);
});

test('a body that is cut off anywhere is refused', async () => {
  const { length } = whole.trimEnd();
  for (let end = 0; end < length; end += 1) await expect(read(whole.slice(0, end))).rejects.toThrow('The body must be');
});

describe('refuses', () => {
  test.each([
    ['an empty list', '{"requests":[]}', 'the list is empty'],
    [
      'another member first',
      `{"x":1,"requests":[{}]}${' '.repeat(1_100)}`,
      "does not begin with the member 'requests'",
    ],
    ['another member after it', '{"requests":[{}],"x":1}', 'other members'],
    ['two documents', '{"requests":[{}]}{}', 'other members'],
    ['items that are not objects', '{"requests":[1]}', 'an object'],
    ['a missing comma', '{"requests":[{}{}]}', 'an object'],
    ['a comma too many', '{"requests":[{},]}', 'an object'],
    ['a leading comma', '{"requests":[,{}]}', 'an object'],
    ['an item that is too large', `{"requests":[{"a":"${'x'.repeat(2_000)}"}]}`, 'more than 1000 bytes'],
  ])('%s', async (_what, body, message) => {
    await expect(read(body, 100)).rejects.toMatchObject({
      kind: 'invalid_request',
      param: 'requests',
      message: expect.stringContaining(message),
    });
  });
});
