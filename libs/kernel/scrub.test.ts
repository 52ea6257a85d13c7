import { expect, test } from 'vitest';
import { scrub } from './scrub.ts';

test.each([
  ['Incorrect API key provided: sk-proj-abcdef1234567890.', 'Incorrect API key provided: [redacted].'],
  ['key sk-ant-api03-Abc_def-123 refused', 'key [redacted] refused'],
  ['gsk_abcdefgh12345678 xai-abcdefgh12345678', '[redacted] [redacted]'],
  ['rk_live_abcdefgh12345', '[redacted]'],
  ['our own glw_abcdefgh1234 and slk_abcdefgh1234', 'our own [redacted] and [redacted]'],
  ['Authorization: Bearer abcdef.ghijkl~mn/op+qr=', 'Authorization: [redacted]'],
  ['authorization: bearer ABCDEFGHIJ', 'authorization: [redacted]'],
  ['AKIAIOSFODNN7EXAMPLE', '[redacted]'],
  ['AIzaSyA-1234567890_abcdefghijk', '[redacted]'],
  ['GET https://host/v1?key=abc123&model=x failed', 'GET https://host/v1?key=[redacted]&model=x failed'],
  ['https://host/?a=1&api_key=abc&API-KEY=def', 'https://host/?a=1&api_key=[redacted]&API-KEY=[redacted]'],
  ['"https://host/?token=abc"', '"https://host/?token=[redacted]"'],
  ['connect postgres://sluice:hunter2@db:5432/x', 'connect postgres://sluice:[redacted]@db:5432/x'],
])('%j becomes %j', (text, clean) => {
  expect(scrub(text)).toBe(clean);
});

test.each([
  'The model `gpt-5-mini` does not exist or you do not have access to it.',
  'risk-adjusted returns are task-specific',
  'Rate limit reached for requests per min (RPM): Limit 3, Used 3. Visit https://host/account?tab=limits',
  'the token limit is 8192; https://host:8080/path',
  '',
])('a text without a credential stays as it is: %j', (text) => {
  expect(scrub(text)).toBe(text);
});

test('known secrets are replaced anywhere, whatever their shape', () => {
  expect(scrub('a(b)c$& and a(b)c$&', ['a(b)c$&'])).toBe('[redacted] and [redacted]');
});

test('nothing is left of two known secrets when one begins with the other', () => {
  expect(scrub('the key is abcd-efgh', ['abcd', 'abcd-efgh'])).toBe('the key is [redacted]');
});

test('a known secret of three characters is ignored, because it would blank out ordinary words', () => {
  expect(scrub('the cat', ['cat'])).toBe('the cat');
});

test('the text is cut after it was scrubbed, so that no half credential is left at its end', () => {
  expect(scrub('x'.repeat(10), [], 5)).toBe('xxxxx…');
  expect(scrub('x'.repeat(5), [], 5)).toBe('xxxxx');
  expect(scrub(`${'x'.repeat(1_990)} sk-abcdefghijklmnopqrstuvwxyz`)).not.toContain('sk-');
});

test('a cut never leaves half a character, which jsonb would reject', () => {
  const cut = scrub('😀'.repeat(10), [], 5);
  expect(cut.isWellFormed()).toBe(true);
  expect(cut).toBe('😀😀\u{FFFD}…');
});

test('a long text of near matches is fast', () => {
  const text =
    'sk-short '.repeat(100_000) + 'Bearer '.repeat(100_000) + '?key'.repeat(100_000) + '://a'.repeat(100_000);
  const scrubbed = scrub(text);
  expect(scrubbed.length).toBe(2_001);
});
