import { expect, test } from 'vitest';
import { countRequestUnits } from './request-units.ts';

const unitsOf = (pathname: string, body: unknown) =>
  countRequestUnits({
    call: { pathname, request: { body: Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)) } } as never,
  });

test.each<[string, string, unknown, object | null]>([
  [
    'images',
    '/v1/images/generations',
    { model: 'dall-e-3', prompt: 'a cat', n: 2, quality: 'hd', size: '1024x1792' },
    { images: { count: 2, kind: 'hd 1024x1792' } },
  ],
  [
    'an image',
    '/v1/images/generations',
    { prompt: 'a cat', n: null },
    { images: { count: 1, kind: 'standard 1024x1024' } },
  ],
  ['speech, in characters and not in UTF-16 units', '/v1/audio/speech', { input: 'Grüße 😀' }, { characters: 7 }],
  ['a chat', '/v1/chat/completions', { model: 'm', n: 3 }, null],
  ['a form', '/v1/images/edits', '--boundary', null],
  ['no JSON', '/v1/audio/speech', '{"input":', null],
])('%s', (_what, pathname, body, units) => expect(unitsOf(pathname, body)).toEqual(units));
