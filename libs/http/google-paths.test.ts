import { expect, test } from 'vitest';
import { toGooglePath } from './google-paths.ts';

const canonical = '/v1beta/models/%40a%2Fb%3Afree:generateContent';

test.each([
  '/v1beta/models/@a/b:free:generateContent',
  '/v1beta/models/%40a%2Fb%3Afree:generateContent',
  '/v1/models/@a/b:free:generateContent',
  '/v1beta1/publishers/google/models/@a/b:free:generateContent',
  '/v1beta1/projects/p/locations/l/publishers/google/models/@a/b:free:generateContent',
])('%s is one path', (url) => {
  expect(toGooglePath(url, false)).toBe(canonical);
  expect(toGooglePath(`${url}?alt=sse`, false)).toBe(`${canonical}?alt=sse`);
});

test.each(['/v1/chat/completions', '/v1/models', '/v1/models/a:b', '/v1/messages?x=:', '/v1beta/nothing', '/health'])(
  '%s is not a path of Google',
  (url) => {
    expect(toGooglePath(url, false)).toBeNull();
  },
);

test('the list of models is that of Google for its clients', () => {
  expect(toGooglePath('/v1/models?pageSize=2', true)).toBe('/v1beta/models?pageSize=2');
  expect(toGooglePath('/v1/models/@a/b', true)).toBe('/v1beta/models/%40a%2Fb');
});

test('a key in the query is refused, without the key in the message', () => {
  const url = '/v1beta/models/m:generateContent?alt=sse&key=AIza-secret';
  expect(() => toGooglePath(url, false)).toThrow(expect.objectContaining({ code: 'key_in_url' }));
  expect(() => toGooglePath(url, false)).not.toThrow(/AIza/);
});
