import { expect, test } from 'vitest';
import { createAnswerReader } from './bench-client.ts';

const answers = {
  'with a length': 'HTTP/1.1 200 OK\r\nContent-Length: 12\r\nx: y\r\n\r\nhello\r\n\r\nyou',
  'with an empty body': 'HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n',
  'in chunks':
    'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n1a;x=y\r\n0\r\n\r\n0\r\n\r\n0\r\n\r\n0\r\n\r\nabcdef\r\n0\r\n\r\n',
  'in no chunk but the last': 'HTTP/1.1 500 Internal Server Error\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n',
};

test.each(Object.entries(answers))('an answer %s ends at its last byte, however it is split', (_name, text) => {
  const bytes = Buffer.from(text);
  const splits = Array.from({ length: bytes.length }, (_, at) => [bytes.subarray(0, at), bytes.subarray(at)]);
  const single = Array.from({ length: bytes.length }, (_, at) => bytes.subarray(at, at + 1));
  for (const pieces of [...splits, single]) {
    const reader = createAnswerReader();
    const ends = pieces.filter((piece) => piece.length > 0).map((piece) => reader.read(piece));
    expect(ends).toEqual([...ends.slice(1).map(() => false), true]);
    expect(reader.status).toBe(Number(text.slice(9, 12)));
  }
});
