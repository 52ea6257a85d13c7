import { afterAll, beforeAll, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, createBatch, ended, toJsonl } from './batch-kit.ts';
import { sdks } from './sdk.ts';

// Error messages of validation quote what the line holds, and go into `batch.failed` as jsonb, which takes neither U+0000
// nor half a surrogate pair. Such a file must fail with its errors, not be validated again and again until it expires.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform();
});
afterAll(() => platform.stop());

const emojiAt199 = `${'x'.repeat(199)}\u{1F600}`;
const cases: [string, unknown[]][] = [
  ['an ordinary wrong role', [chatLine('a', { messages: [{ role: 'userx', content: 'hi' }] })]],
  ['a role with U+0000', [chatLine('a', { messages: [{ role: 'us\0er', content: 'hi' }] })]],
  ['a role with half a surrogate pair', [chatLine('a', { messages: [{ role: 'us\ud800er', content: 'hi' }] })]],
  ['a method with U+0000', [{ ...chatLine('a'), method: 'PO\0ST' }]],
  ['a tool_choice with U+0000', [chatLine('a', { tool_choice: '\0' })]],
  ['a duplicate custom_id whose 200th unit is half an emoji', [chatLine(emojiAt199), chatLine(emojiAt199)]],
  ['a model without virtual key whose 200th unit is half an emoji', [chatLine('a', { model: emojiAt199 })]],
  ['a role whose 200th unit is half an emoji', [chatLine('a', { messages: [{ role: emojiAt199, content: 'hi' }] })]],
];

// `batch.validated` holds the model that all lines have: the line's schema lets any string through.
const models: [string, string][] = [
  ['U+0000', '@simulator/sim\0small'],
  ['half a surrogate pair', '@simulator/sim\ud800small'],
];
test.for(models)(
  'a model with %s, in every line: the batch ends, in whichever way',
  { timeout: 40_000 },
  async ([, model]) => {
    const [sdk] = sdks;
    if (!sdk) throw new Error('no SDK');
    const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
    const created = await createBatch(sdk, client, toJsonl([chatLine('a', { model }), chatLine('b', { model })]));
    const { status } = await ended(client, created, 15_000).catch(() => client.batches.retrieve(created.id));
    expect(['failed', 'completed']).toContain(status);
  },
);

test.concurrent.for(cases)('%s: the batch fails and says why', { timeout: 40_000 }, async ([, lines]) => {
  const [sdk] = sdks;
  if (!sdk) throw new Error('no SDK');
  const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
  const created = await createBatch(sdk, client, toJsonl(lines));
  const batch = await ended(client, created, 15_000).catch(() => client.batches.retrieve(created.id));
  expect(batch.status).toBe('failed');
  expect(batch.errors?.data?.length).toBeGreaterThan(0);
});
