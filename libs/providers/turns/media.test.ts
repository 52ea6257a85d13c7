import { describe, expect, test } from 'vitest';
import { fetchedMedia, readMedia } from './media.ts';

const refusal = expect.objectContaining({ kind: 'invalid_request', code: 'invalid_value', param: 'p' });

describe('a data: URL', () => {
  test.each([
    ['data:image/png;base64,AAAA', 'image/png', 'AAAA'],
    ['data:image/jpg;base64,AAA=', 'image/jpeg', 'AAA='],
    ['DATA:IMAGE/PNG;charset=x;BASE64,AAAA', 'image/png', 'AAAA'],
    ['data:text/plain,a%20b', 'text/plain', 'YSBi'],
    [`data:image/png;base64,${'A'.repeat(8_000)}`, 'image/png', 'A'.repeat(8_000)],
  ])('is taken apart: %.60s', (url, mediaType, base64) => {
    expect(readMedia(url, 'p')).toEqual({ kind: 'bytes', mediaType, base64 });
  });

  test.each([
    'data:image/png;base64,',
    'data:image/png;base64,A=A',
    'data:image/png;base64,not base64',
    `data:image/png;base64,${'A'.repeat(8_000)}!`,
    `data:image/png;base64,!${'A'.repeat(8_000)}`,
    'data:image/png',
    'data:,x',
    'data:text/plain,%',
  ])('that cannot be read is refused, without its content in the message: %.40s', (url) => {
    expect(() => readMedia(url, 'p')).toThrow(refusal);
    expect(() => readMedia(url, 'p')).not.toThrow(/AAAA|not base64,/);
  });
});

test('any other URL stays as it is, and a relative one is refused', () => {
  expect(readMedia('https://a.example/x.png', 'p')).toEqual({ kind: 'url', url: 'https://a.example/x.png' });
  expect(() => readMedia('x.png', 'p')).toThrow(refusal);
});

test.each([
  ['\x89PNG\r\n\x1a\n', 'binary/octet-stream', 'image/png'],
  ['\xff\xd8\xff\xe0', 'image/png', 'image/jpeg'],
  ['GIF89a', '', 'image/gif'],
  ['RIFF\n\x00\x00\x00WEBPVP8', 'text/plain', 'image/webp'],
  ['%PDF-1.7', 'application/octet-stream', 'application/pdf'],
  ['a,b', 'text/csv', 'text/csv'],
  ['??', 'image/JPG', 'image/jpeg'],
])('fetched bytes %j sent as %s are %s', (start, contentType, mediaType) => {
  const bytes = Buffer.from(start, 'latin1');
  expect(fetchedMedia({ contentType, bytes })).toEqual({ kind: 'bytes', mediaType, base64: bytes.toString('base64') });
});
