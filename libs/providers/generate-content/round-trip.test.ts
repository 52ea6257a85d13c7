import fc from 'fast-check';
import { expect, test } from 'vitest';
import { translationCall } from '#test/translation-call.ts';
import { encodeGeminiBody } from '../gemini/encode.ts';
import { generateContentDialect } from './index.ts';

// What the dialect reads and what the adapter of Gemini writes have to be the same conversation. The requests are the ones
// that both write alike: alternating roles, texts before calls, results first.

const word = fc.stringMatching(/^[a-zA-Z0-9äß":. ]{0,20}[a-z]$/);
const base64 = fc.uint8Array({ minLength: 1, maxLength: 30 }).map((bytes) => Buffer.from(bytes).toString('base64'));
const signature = base64;
const blob = fc.record({ mimeType: fc.constantFrom('image/png', 'image/jpeg', 'application/pdf'), data: base64 });
const asked = fc.oneof(
  word.map((text) => ({ text })),
  blob.map((inlineData) => ({ inlineData })),
);
const args = fc.dictionary(fc.stringMatching(/^[a-z]{1,8}$/), fc.oneof(word, fc.integer(), fc.boolean()), {
  maxKeys: 3,
});

const conversation = fc
  .array(
    fc.record({
      said: fc.tuple(word, fc.option(signature, { nil: undefined })),
      calls: fc.array(fc.tuple(args, fc.option(signature, { nil: undefined })), { maxLength: 3 }),
      hasIds: fc.boolean(),
      output: word,
      next: fc.array(asked, { minLength: 1, maxLength: 3 }),
    }),
    { maxLength: 4 },
  )
  .map((rounds) => [
    { role: 'user', parts: [{ text: 'Begin.' }] },
    ...rounds.flatMap(({ said: [text, signed], calls, hasIds, output, next }, round) => {
      const named = calls.map(([given, thoughtSignature], position) => ({
        call: { ...(hasIds ? { id: `id-${round}-${position}` } : {}), name: `tool_${position}`, args: given },
        signed: thoughtSignature === undefined ? {} : { thoughtSignature },
      }));
      return [
        {
          role: 'model',
          parts: [
            { text, ...(signed === undefined ? {} : { thoughtSignature: signed }) },
            ...named.map(({ call, signed: own }) => ({ functionCall: call, ...own })),
          ],
        },
        {
          role: 'user',
          parts: [
            ...named.map(({ call: { args: _args, ...called } }) => ({
              functionResponse: { ...called, response: { output } },
            })),
            ...next,
          ],
        },
      ];
    }),
  ]);

test('a conversation that is read and written again is the same', () => {
  fc.assert(
    fc.property(conversation, fc.option(word, { nil: undefined }), (contents, instruction) => {
      const body = {
        contents,
        ...(instruction === undefined ? {} : { systemInstruction: { parts: [{ text: instruction }] } }),
      };
      const call = translationCall(body, {
        operation: 'generate_content',
        dialect: generateContentDialect,
        model: 'gemini-2.5-flash',
        strict: false,
      });
      const { body: written, dropped } = encodeGeminiBody(call);
      expect(written).toEqual(body);
      expect(dropped).toEqual([]);
    }),
    { numRuns: 300 },
  );
});

const snakeCase = (value: unknown): unknown => {
  if (Array.isArray(value)) return value.map(snakeCase);
  if (typeof value !== 'object' || value === null) return value;
  const spell = (name: string): string => name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [spell(name), snakeCase(each)]));
};

test('both spellings of the members are read alike', () => {
  fc.assert(
    fc.property(conversation, (contents) => {
      const body = { contents, generationConfig: { maxOutputTokens: 9, topP: 0.5, stopSequences: ['x'] } };
      const { body: camel, ...request } = generateContentDialect.decodeRequest(body, 'm');
      const { body: snake, ...other } = generateContentDialect.decodeRequest(snakeCase(body) as typeof body, 'm');
      expect(other).toEqual(request);
      expect(snake).toEqual(camel);
    }),
  );
});
