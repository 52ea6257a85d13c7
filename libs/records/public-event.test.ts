import { expect, test } from 'vitest';
import { publicData } from './public-event.ts';

const guardrails = [{ checks: [{ id: 'webhook', parameters: { headers: { 'x-sig': 'sk-clear' } } }] }];
const config = { targets: [{ virtual_key: 'a', input_guardrails: guardrails }] };

test.each([
  ['a config', { name: 'Old', slug: 'old', config }],
  ['the guardrails of a workspace', { input_guardrails: guardrails, output_guardrails: [] }],
  ['a batch with a config', { endpoint: '/v1/chat/completions', target: { type: 'config', config } }],
])('secrets in the event of %s are not shown', (_of, data) => {
  const shown = JSON.stringify(publicData(data));
  expect(shown).not.toContain('sk-clear');
  expect(shown).toContain('[redacted]');
});

test('the digest of a key is not shown, and the rest of an event is', () => {
  expect(publicData({ name: 'ci', digest: 'aa11', defaults: { metadata: null } })).toEqual({
    name: 'ci',
    defaults: { metadata: null },
  });
});
