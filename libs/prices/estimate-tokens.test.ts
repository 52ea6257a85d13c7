import { expect, test } from 'vitest';
import { estimateInput } from './estimate-tokens.ts';

test.each<[string, Record<string, unknown>, number]>([
  ['texts of messages', { messages: [{ role: 'user', content: 'x'.repeat(400) }] }, 104],
  [
    'parts of messages, and none for an image',
    {
      messages: [
        { role: 'system', content: 'x'.repeat(40) },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'x'.repeat(40) },
            { type: 'image_url', image_url: { url: `data:image/png;base64,${'A'.repeat(10_000)}` } },
          ],
        },
      ],
    },
    28,
  ],
  ['an input of embeddings', { input: ['x'.repeat(40), 'x'.repeat(40)] }, 20],
  ['an input of tokens', { input: [1, 2, 3] }, 3],
  ['a prompt', { prompt: 'x'.repeat(8) }, 2],
  ['tools by their schemas', { messages: [], tools: [{ type: 'function' }] }, 6],
  ['at least one token', {}, 1],
])('the input is estimated from %s', (_what, body, tokens) => {
  expect(estimateInput(body)).toBe(tokens);
});
