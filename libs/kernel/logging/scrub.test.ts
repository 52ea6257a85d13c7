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

/** Letters and digits as random as those of a credential, which a secret scanner would still not report. */
const random = (length: number): string => 'aB3dE6gH9jK2mN5pQ8sT1vW4xY7z'.repeat(10).slice(0, length);
const hex = (length: number): string => '0a1b2c3d4e5f6789'.repeat(10).slice(0, length);

const prefixes =
  'sk-ant-api03- sk-proj- gsk_ xai- pplx- hf_ r8_ sk_live_ rk_test_ whsec_ ghp_ gho_ ghu_ ghs_ ghr_ ' +
  'github_pat_ glpat- gldt- glrt- GR1348941 npm_ rubygems_ xoxb-1234567890- xoxp- xoxe- xapp-1- SG. ' +
  'xkeysib- ATATT3 lin_api_ ntn_ PMAK- shpat_ hvs. hvb. dp.pt. dapi glsa_ glc_ dop_v1_ pscale_tkn_ pnu_ ' +
  'NRAK- sha256~ LTAI AKIA ASIA AIza GOCSPX- ya29. sq0atp- EZAK shippo_live_ duffel_test_ ' +
  'AGE-SECRET-KEY-1';

test.each(prefixes.split(' '))('a credential that begins with %s is removed', (prefix) => {
  const key = prefix + (/^A[KS]IA$/.test(prefix) ? random(40).toUpperCase() : random(40));
  expect(scrub(`it is ${key}, really`)).toBe('it is [redacted], really');
  expect(scrub(`{"a":"${key}"}`)).toBe('{"a":"[redacted]"}');
});

test.each([
  ['a JWT', `eyJ${random(20)}.eyJ${random(30)}.${random(40)}`],
  ['a private key', `-----BEGIN RSA PRIVATE KEY-----\n${random(64)}\n${random(64)}\n-----END RSA PRIVATE KEY-----`],
  ['a private key in JSON', `-----BEGIN PRIVATE KEY-----\\n${random(64)}\\n-----END PRIVATE KEY-----\\n`.slice(0, -2)],
  ['a private key that is cut', `-----BEGIN OPENSSH PRIVATE KEY-----\n${random(64)}`],
  ['a client secret of Azure', `abc8Q~${random(33)}`],
  ['a key of Mailchimp', `${hex(32)}-us12`],
  ['a token of a Telegram bot', `123456789:AA${random(33)}`],
  ['basic authentication', `Basic ${random(24)}=`],
])('%s is removed', (_what, text) => {
  expect(scrub(text)).toBe('[redacted]');
});

test.each([
  [`https://hooks.slack.com/services/T0123/B0123/${random(24)}`, 'https://hooks.slack.com/services/[redacted]'],
  [`https://discord.com/api/webhooks/123456789/${random(60)}`, 'https://discord.com/api/webhooks/[redacted]'],
  [`https://x.webhook.office.com/webhookb2/${random(30)}/y`, 'https://x.webhook.office.com/[redacted]'],
  [`AccountKey=${random(86)}==;EndpointSuffix=x`, 'AccountKey=[redacted];EndpointSuffix=x'],
  ['redis://:hunter2@cache:6379', 'redis://:[redacted]@cache:6379'],
  [`api_key = "${random(20)}"`, 'api_key = "[redacted]"'],
  [`MY_SECRET=${random(20)}`, 'MY_SECRET=[redacted]'],
  [`{"db_password":"${random(14)}"}`, '{"db_password":"[redacted]"}'],
  [`x-auth-token: ${hex(32)}`, 'x-auth-token: [redacted]'],
])('%j becomes %j', (text, clean) => {
  expect(scrub(text)).toBe(clean);
});

test.each([
  'The model `gpt-5-mini` does not exist or you do not have access to it.',
  'risk-adjusted returns are task-specific',
  'Rate limit reached for requests per min (RPM): Limit 3, Used 3. Visit https://host/account?tab=limits',
  'the token limit is 8192; https://host:8080/path',
  'password: correct-horse-battery-staple, token = placeholder_value, secret: your-secret-here',
  'max_tokens: 100000000000, token=1234567890123456',
  'desk-chairs, key-value pairs, skill_level, pull requests, secret_santa, sha256 of it',
  '-----BEGIN CERTIFICATE-----',
  'https://discord.com/channels/1/2 and eyJhbGciOi',
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
    'sk-short '.repeat(100_000) +
    'Bearer '.repeat(100_000) +
    '?key'.repeat(100_000) +
    '://a'.repeat(100_000) +
    'eyJ-'.repeat(100_000) +
    'token = '.repeat(50_000) +
    '-----BEGIN PRIVATE KEY-----'.repeat(10_000) +
    'secret_'.repeat(50_000) +
    'x~'.repeat(100_000);
  const scrubbed = scrub(text);
  expect(scrubbed.length).toBe(2_001);
});
