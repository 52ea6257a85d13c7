import { expect, test } from 'vitest';
import { generate, onlyGeneration, type GenerateRequest } from './generate.ts';
import { hashText } from './hash.ts';
import { countTokens } from './tokens.ts';

const ask = (fields: Partial<GenerateRequest> = {}): GenerateRequest => ({
  hash: hashText('question'),
  lastUserText: 'question',
  endsWithToolResult: false,
  rawBody: '{}',
  promptTokens: 5,
  choiceCount: 1,
  tokensMax: undefined,
  stop: [],
  tools: [],
  toolUse: 'auto',
  parallelToolUse: true,
  jsonSchema: undefined,
  ...fields,
});
const write = { manner: 'write' } as const;
const asText = (fields: Partial<GenerateRequest>) => generate(ask(fields), write).generations[0]?.text ?? '';

test('the same request has the same answer, another request another', () => {
  expect(generate(ask(), write)).toEqual(generate(ask(), write));
  expect(asText({ hash: hashText('other') })).not.toBe(asText({}));
});

test('the token counts are those of the text, whatever limits it', () => {
  for (let index = 0; index < 300; index++) {
    const fields = {
      hash: hashText(`prompt ${index}`),
      tokensMax: [undefined, 20, 90][index % 3],
      stop: index % 4 === 0 ? ['which', ' most'] : [],
    };
    const { text, tokens } = onlyGeneration(generate(ask(fields), index % 5 === 0 ? { ...write, tokens: 70 } : write));
    expect(tokens).toBe(countTokens(text ?? ''));
  }
});

test('an exact length is met to the token', () => {
  for (const tokens of [1, 16, 500]) {
    const [generation] = generate(ask(), { manner: 'write', tokens }).generations;
    expect(generation).toMatchObject({ tokens, finish: 'stop' });
    expect(countTokens(generation?.text ?? '')).toBe(tokens);
  }
});
