import { describe, expect, test } from 'vitest';
import { bytesOf, translationCall, upstreamAt } from '#test/translation-call.ts';
import { gemini } from '../gemini/index.ts';
import { vertex } from '../vertex/index.ts';
import type { Json } from '../turns/json-value.ts';
import { adaptEdits } from './adapt-edits.ts';
import { toEmbeddingAnswer, toEmbeddingRequest } from './convert-embeddings.ts';
import { generateContentDialect } from './index.ts';
import { toJsonSchema } from './open-api-schema.ts';
import { readPartSignature, wrappedStart, writeHidden, writePartSignature } from './part-signature.ts';

const contents = [{ role: 'user', parts: [{ text: 'Hi' }] }];
const read = (body: Json) => generateContentDialect.decodeRequest({ contents, ...body }, 'm');
const call = translationCall({ contents }, { operation: 'generate_content', dialect: generateContentDialect });
const unsupported = (param: string) => expect.objectContaining({ code: 'unsupported_parameter', param });

describe('a request', () => {
  test('has the parameters of its generationConfig', () => {
    const config = { temperature: 0.5, topP: 0.9, topK: 4, maxOutputTokens: 7, stopSequences: ['a'], seed: 3 };
    const found = read({
      generationConfig: { ...config, candidateCount: 2, presencePenalty: 1, frequencyPenalty: -1 },
    });
    expect(found).toMatchObject({ temperature: 0.5, topP: 0.9, maxTokens: 7, stop: ['a'], seed: 3, n: 2 });
    expect(found).toMatchObject({ presencePenalty: 1, frequencyPenalty: -1, body: { top_k: 4 } });
  });

  test.each([
    [{ thinkingBudget: 0 }, 'none'],
    [{ thinkingBudget: 1_024 }, 'low'],
    [{ thinkingBudget: 8_000 }, 'medium'],
    [{ thinkingBudget: 20_000 }, 'high'],
    [{ thinkingBudget: -1 }, undefined],
    [{ thinkingLevel: 'HIGH' }, 'high'],
  ])('with the thinking %j has the effort %s', (thinkingConfig, effort) => {
    expect(read({ generationConfig: { thinkingConfig } }).reasoningEffort).toBe(effort);
  });

  const declarations = [{ functionDeclarations: [{ name: 'a' }, { name: 'b' }, { name: 'c' }] }];
  test.each([
    ['AUTO', undefined, 'auto', ['a', 'b', 'c']],
    ['NONE', undefined, 'none', ['a', 'b', 'c']],
    ['ANY', undefined, 'required', ['a', 'b', 'c']],
    ['ANY', ['b'], { name: 'b' }, ['a', 'b', 'c']],
    ['ANY', ['b', 'c'], 'required', ['b', 'c']],
    ['VALIDATED', ['a'], 'auto', ['a']],
  ])('with the mode %s and the names %j chooses %j', (mode, allowedFunctionNames, choice, names) => {
    const toolConfig = { functionCallingConfig: { mode, allowedFunctionNames } };
    const { tools, toolChoice } = read({ tools: declarations, toolConfig });
    expect([toolChoice, tools.map(({ name }) => name)]).toEqual([choice, names]);
  });

  test.each([
    ['tools[0].googleSearch', { tools: [{ googleSearch: {} }] }],
    ['tools[0].codeExecution', { tools: [{ code_execution: {} }] }],
    ['tools[0].urlContext', { tools: [{ urlContext: {} }] }],
    ['cachedContent', { cachedContent: 'cachedContents/1' }],
    ['generationConfig.responseModalities', { generationConfig: { responseModalities: ['IMAGE'] } }],
    [
      'contents[0].parts[0].fileData.fileUri',
      {
        contents: [{ parts: [{ fileData: { fileUri: 'https://generativelanguage.googleapis.com/v1beta/files/1' } }] }],
      },
    ],
  ])('with %s is refused, because only Google has it', (param, body) => {
    expect(() => read(body)).toThrow(unsupported(param));
  });

  test('names what other providers have no place for', () => {
    const { body, hints } = read({
      safetySettings: [{}],
      labels: { a: 'b' },
      generationConfig: { mediaResolution: 'X' },
    });
    expect(Object.keys(body)).toEqual(expect.arrayContaining(['safetySettings', 'labels']));
    expect(hints).toEqual(['generationConfig.mediaResolution']);
  });

  test('gives results without an ID to the open calls of their names, in order', () => {
    const calls = ['a', 'b', 'a'].map((name) => ({ functionCall: { name, args: {} } }));
    const results = ['a', 'a', 'b'].map((name) => ({ functionResponse: { name, response: { output: name } } }));
    const { messages } = read({
      contents: [...contents, { role: 'model', parts: calls }, { role: 'user', parts: results }],
    });
    const ids = messages.flatMap((turn) => (turn.role === 'tool' ? [turn.toolCallId] : []));
    expect(ids).toEqual(['call_1_0', 'call_1_2', 'call_1_1']);
  });
});

test('a schema of Google becomes one of JSON Schema, which allows no other members', () => {
  const schema = {
    type: 'OBJECT',
    properties: { a: { type: 'ARRAY', items: { type: 'STRING', nullable: true, enum: ['x'] }, minItems: '2' } },
    required: ['a'],
    propertyOrdering: ['a'],
  };
  expect(toJsonSchema(schema, 'p')).toEqual({
    type: 'object',
    properties: { a: { type: 'array', items: { type: ['string', 'null'], enum: ['x', null] }, minItems: 2 } },
    required: ['a'],
    additionalProperties: false,
  });
  let deep: Json = {};
  for (let level = 0; level < 100; level += 1) deep = { items: deep };
  expect(() => toJsonSchema(deep, 'p')).toThrow(expect.objectContaining({ kind: 'invalid_request', param: 'p' }));
});

describe('a signature', () => {
  test('of Google stays as it is', () => {
    expect(writePartSignature('gemini', 'CsQB+/==')).toBe('CsQB+/==');
    expect(readPartSignature('CsQB+/==')).toEqual({ signer: 'gemini', signature: 'CsQB+/==' });
  });

  test('of another provider is base64 that names it, and never counts as one of Google', () => {
    const written = writePartSignature('claude', 'EqQB');
    expect(written.startsWith(wrappedStart)).toBe(true);
    expect(Buffer.from(written, 'base64').toString()).toBe('sluice.claude.EqQB');
    const urlSafe = written.replaceAll('+', '-').replaceAll('/', '_');
    expect(readPartSignature(urlSafe)).toEqual({ signer: 'claude', signature: 'EqQB' });
    expect(readPartSignature(writeHidden('claude', 'abc'))).toMatchObject({ signer: 'claude', data: 'abc' });
  });
});

describe('a stream', () => {
  const open = () => generateContentDialect.openAnswer({ id: 'r', model: 'm', signer: 'other' }, call);
  const partsOf = (payloads: readonly string[]): unknown[] =>
    payloads.flatMap((payload) => {
      const { candidates } = JSON.parse(payload) as { candidates: { content: { parts: unknown[] } }[] };
      return candidates.flatMap(({ content }) => content.parts);
    });

  test('has each call whole, and the reason and usage last', () => {
    const stream = open();
    const choice = stream.choice();
    const pieces = [
      ...choice.toolCall(0, { id: 'call_a', name: 'f' }),
      ...choice.toolCall(1, { id: 'call_b', name: 'g' }),
      ...choice.toolArguments(0, '{"x":'),
      ...choice.toolArguments(1, '{}'),
      ...choice.toolArguments(0, '1}'),
      ...choice.finish('tool_calls'),
    ];
    expect(partsOf(pieces)).toEqual([
      { functionCall: { id: 'call_a', name: 'f', args: { x: 1 } } },
      { functionCall: { id: 'call_b', name: 'g', args: {} } },
    ]);
    stream.usage({ promptTokens: 2, completionTokens: 5, reasoningTokens: 1 });
    expect(JSON.parse(stream.end()[0] ?? '')).toMatchObject({
      candidates: [{ finishReason: 'STOP' }],
      usageMetadata: { promptTokenCount: 2, candidatesTokenCount: 4, thoughtsTokenCount: 1, totalTokenCount: 7 },
    });
  });

  test('has no end if one of its candidates has not finished', () => {
    const stream = open();
    stream.choice(0).finish('stop');
    stream.choice(1).text('a');
    expect(stream.end()).toEqual([]);
  });

  test('names the author of reasoning that has no signature', () => {
    const choice = open().choice();
    const parts = partsOf([...choice.thought({ thinking: 'hm' }, 0), ...choice.text('a', 1)]);
    expect(parts).toEqual([
      { text: 'hm', thought: true },
      { text: '', thought: true, thoughtSignature: writePartSignature('other', '') },
      { text: 'a' },
    ]);
  });

  test('fails at arguments that are too long, or that are not an object', () => {
    const long = open().choice();
    long.toolCall(0, { id: 'a', name: 'f' });
    const megabyte = 'x'.repeat(1_048_576);
    const fill = (): void => {
      for (let count = 0; count < 5; count += 1) long.toolArguments(0, megabyte);
    };
    const invalid = expect.objectContaining({ code: 'upstream_invalid_response' });
    expect(fill).toThrow(invalid);
    const broken = open().choice();
    broken.toolCall(0, { id: 'a', name: 'f', arguments: '{"x":' });
    expect(() => broken.finish('tool_calls')).toThrow(invalid);
  });

  test('leaves out a call that was cut off', () => {
    const choice = open().choice();
    choice.toolCall(0, { id: 'a', name: 'f', arguments: '{"x":' });
    expect(choice.finish('length')).toEqual([]);
  });
});

describe('Google itself', () => {
  const send = (provider: typeof gemini, body: string, model: string, edits = {}) => {
    const bytes = Buffer.from(body);
    const made = translationCall(JSON.parse(body) as object, {
      operation: 'generate_content',
      dialect: generateContentDialect,
      model,
      body: bytes,
      edits: adaptEdits(bytes, edits),
      stream: true,
    });
    const settings = { vertex_region: 'europe-west4', vertex_project_id: 'p' };
    const outbound = provider.operations.generate_content?.encode(
      made,
      upstreamAt('https://google.example/v1', { settings }),
    );
    if (outbound === undefined) throw new Error('no such operation');
    return { path: outbound.path, dropped: outbound.dropped, body: bytesOf(outbound).toString() };
  };
  const body = '{ "contents": [ {"parts":[{"text":"a", "thoughtSignature":"CsQB"}], "new": 1.0} ],  "other": [ ] }';

  test('gets the bytes of its client, with the model in the path', () => {
    const edits = { model: '"gemini-x"' };
    expect(send(gemini, body, 'gemini-x', edits)).toEqual({
      path: '/v1/models/gemini-x:streamGenerateContent?alt=sse',
      dropped: undefined,
      body,
    });
    expect(send(vertex, body, 'gemini-x', edits)).toMatchObject({
      path: '/v1/projects/p/locations/europe-west4/publishers/google/models/gemini-x:streamGenerateContent?alt=sse',
      body,
    });
  });

  test('serves only its own models on Vertex AI', () => {
    const serves = (model: string): boolean | undefined => vertex.operations.generate_content?.serves?.(model);
    expect(['gemini-x', 'claude-x', 'meta/llama'].map(serves)).toEqual([true, false, false]);
  });

  test('does not get the reasoning of others', () => {
    const parts = [
      { text: 'hm', thought: true },
      { text: '', thought: true, thoughtSignature: writePartSignature('claude', 'EqQB') },
      { text: 'Hello' },
    ];
    const sent = send(gemini, JSON.stringify({ contents: [{ role: 'model', parts }], a: 1 }), 'gemini-x');
    expect(sent.dropped).toEqual(['reasoning']);
    expect(JSON.parse(sent.body)).toEqual({ contents: [{ role: 'model', parts: [{ text: 'Hello' }] }], a: 1 });
  });

  test('gets the parameters of a config in its own place', () => {
    const given = '{"contents":[],"generation_config":{"max_output_tokens":9,"topK":2}}';
    const sent = send(gemini, given, 'gemini-x', { max_tokens: '3', stop: '"x"', top_k: undefined, labels: '{}' });
    expect(JSON.parse(sent.body)).toEqual({
      contents: [],
      generation_config: { maxOutputTokens: 3, stopSequences: ['x'] },
      labels: {},
    });
  });
});

describe('embeddings', () => {
  test('are those of OpenAI in the form of Google', () => {
    const request = (text: string) => ({ content: { parts: [{ text }] }, output_dimensionality: 2 });
    expect(toEmbeddingRequest([request('a'), request('b')], 'm')).toEqual({
      model: 'm',
      input: ['a', 'b'],
      dimensions: 2,
    });
    const answer = { data: [{ embedding: [1, 2] }], usage: { prompt_tokens: 3 } };
    const usageMetadata = { promptTokenCount: 3, totalTokenCount: 3 };
    expect(toEmbeddingAnswer(answer, true)).toEqual({ embeddings: [{ values: [1, 2] }], usageMetadata });
    expect(toEmbeddingAnswer(answer, false)).toEqual({ embedding: { values: [1, 2] }, usageMetadata });
  });

  test('of different sizes, or of images, are refused', () => {
    const text = { content: { parts: [{ text: 'a' }] } };
    const refused = expect.objectContaining({ kind: 'invalid_request' });
    expect(() => toEmbeddingRequest([text, { ...text, outputDimensionality: 5 }], 'm')).toThrow(refused);
    expect(() => toEmbeddingRequest([{ content: { parts: [{ inlineData: {} }] } }], 'm')).toThrow(refused);
  });
});
