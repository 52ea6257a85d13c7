import { describe, expect, test } from 'vitest';
import { translationCall } from '#test/translation-call.ts';
import { decodeEmbeddings, encodeEmbeddingsBody } from './embeddings.ts';

const toCall = (model: string, more: object) => translationCall({ model, ...more }, { operation: 'embeddings' });
const encode = (model: string, more: object) => encodeEmbeddingsBody(toCall(model, more));
const refusal = (param: string, code = 'unsupported_parameter') =>
  expect.objectContaining({ kind: 'invalid_request', code, param });

const titan = 'amazon.titan-embed-text-v2:0';
const cohere = 'cohere.embed-multilingual-v3';

describe('Titan', () => {
  test('takes one text', () => {
    expect(encode(titan, { input: ['a'], dimensions: 256, encoding_format: 'base64', user: 'u' })).toEqual({
      model: titan,
      body: { inputText: 'a', dimensions: 256 },
      dropped: ['user'],
    });
    expect(() => encode(titan, { input: ['a', 'b'] })).toThrow(refusal('input'));
    expect(() => encode('amazon.titan-embed-text-v1', { input: 'a', dimensions: 256 })).toThrow(refusal('dimensions'));
  });

  test('gives one vector and its tokens', () => {
    expect(decodeEmbeddings({ embedding: [1, 2], inputTextTokenCount: 4 }, toCall(titan, { input: 'a' }))).toEqual({
      object: 'list',
      data: [{ object: 'embedding', index: 0, embedding: [1, 2] }],
      model: titan,
      usage: { prompt_tokens: 4, total_tokens: 4 },
    });
  });
});

describe('Cohere', () => {
  test('takes many texts, and what they are for', () => {
    expect(encode(cohere, { input: ['a', 'b'] }).body).toEqual({
      texts: ['a', 'b'],
      input_type: 'search_document',
      embedding_types: ['float'],
    });
    expect(
      encode('us.cohere.embed-v4:0', { input: 'a', dimensions: 512, input_type: 'search_query' }).body,
    ).toMatchObject({
      texts: ['a'],
      input_type: 'search_query',
      output_dimension: 512,
    });
    expect(() => encode(cohere, { input: 'a', dimensions: 512 })).toThrow(refusal('dimensions'));
  });

  test.each([{ embeddings: { float: [[1], [2]] } }, { embeddings: [[1], [2]] }])(
    'gives vectors in order, and no usage that it did not tell: %j',
    (body) => {
      expect(decodeEmbeddings(body, toCall(cohere, { input: ['a', 'b'] }))).toEqual({
        object: 'list',
        data: [
          { object: 'embedding', index: 0, embedding: [1] },
          { object: 'embedding', index: 1, embedding: [2] },
        ],
        model: cohere,
      });
    },
  );
});

test('tokens, other models and other answers are not taken for what they are not', () => {
  expect(() => encode(titan, { input: [1, 2] })).toThrow(refusal('input'));
  expect(() => encode('amazon.nova-pro-v1:0', { input: 'a' })).toThrow(refusal('model', 'invalid_value'));
  expect(decodeEmbeddings({ message: 'x' }, toCall(titan, { input: 'a' }))).toEqual({ message: 'x' });
});
