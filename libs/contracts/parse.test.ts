import { expect, test } from 'vitest';
import { z } from 'zod';
import { GatewayError } from '#libs/kernel/errors.ts';
import { apiKeyFields } from './people/api-keys.ts';
import { BatchListQuery, CreateBatchRequest } from './batches/batches.ts';
import { ChatCompletionRequest } from './calls/chat.ts';
import { CompletionRequest } from './calls/completions.ts';
import { EmbeddingRequest } from './calls/embeddings.ts';
import { FileListQuery, FileUploadFields } from './batches/files.ts';
import { FineTuningJobListQuery } from './batches/fine-tuning.ts';
import { parseWith, refuseProtoMembers, tryParse } from './parse.ts';
import { virtualKeyFields } from './virtual-keys.ts';

function refusal(schema: z.ZodType, value: unknown): { code: string | null; param: string | null; message: string } {
  try {
    parseWith(schema, value);
  } catch (error) {
    if (!(error instanceof GatewayError) || error.kind !== 'invalid_request') throw error;
    return { code: error.code, param: error.param, message: error.message };
  }
  throw new Error(`accepted: ${JSON.stringify(value)}`);
}

const messages = [{ role: 'user', content: 'hello' }];
const chat = (fields: object) => ({ model: 'm', messages, ...fields });
const batch = (fields: object) => ({
  input_file_id: 'file-1',
  endpoint: '/v1/chat/completions',
  completion_window: '24h',
  ...fields,
});

test.each<[object | null | string, string, string | null, string?]>([
  [{ messages }, 'missing_required_parameter', 'model', "Missing required parameter: 'model'."],
  [{ model: 'm' }, 'missing_required_parameter', 'messages'],
  [
    { model: 3, messages },
    'invalid_type',
    'model',
    "Invalid type for 'model': expected a string, but got an integer instead.",
  ],
  [
    { model: null, messages },
    'invalid_type',
    'model',
    "Invalid type for 'model': expected a string, but got null instead.",
  ],
  [
    { model: 'm', messages: 'hello' },
    'invalid_type',
    'messages',
    "Invalid type for 'messages': expected an array, but got a string instead.",
  ],
  [{ model: 'm', messages: [] }, 'empty_array', 'messages'],
  [{ model: 'm', messages: ['x'] }, 'invalid_type', 'messages[0]'],
  [{ model: 'm', messages: [{ content: 'x' }] }, 'missing_required_parameter', 'messages[0].role'],
  [
    { model: 'm', messages: [{ role: 'robot', content: 'x' }] },
    'invalid_value',
    'messages[0].role',
    "Invalid value: 'robot'. Supported values are: 'system', 'developer', 'user', 'assistant', 'tool', and 'function'.",
  ],
  [{ model: 'm', messages: [...messages, { role: 'user' }] }, 'missing_required_parameter', 'messages[1].content'],
  [
    { model: 'm', messages: [{ role: 'user', content: 5 }] },
    'invalid_type',
    'messages[0].content',
    "Invalid type for 'messages[0].content': expected a string or an array, but got an integer instead.",
  ],
  [{ model: 'm', messages: [{ role: 'user', content: [] }] }, 'empty_array', 'messages[0].content'],
  [
    { model: 'm', messages: [{ role: 'user', content: [{}] }] },
    'missing_required_parameter',
    'messages[0].content[0].type',
  ],
  [
    { model: 'm', messages: [{ role: 'user', content: [{ type: 'text' }] }] },
    'missing_required_parameter',
    'messages[0].content[0].text',
    "Missing required parameter: 'messages[0].content[0].text'.",
  ],
  [
    { model: 'm', messages: [{ role: 'user', content: [{ type: 'image_url', image_url: 'http://x' }] }] },
    'invalid_type',
    'messages[0].content[0].image_url',
  ],
  [
    { model: 'm', messages: [{ role: 'tool', content: 'x' }] },
    'missing_required_parameter',
    'messages[0].tool_call_id',
  ],
  [
    {
      model: 'm',
      messages: [{ role: 'assistant', tool_calls: [{ id: 'a', type: 'function', function: { name: 'f' } }] }],
    },
    'missing_required_parameter',
    'messages[0].tool_calls[0].function.arguments',
  ],
  [
    chat({ temperature: 3 }),
    'decimal_above_max_value',
    'temperature',
    "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
  ],
  [chat({ temperature: -0.1 }), 'decimal_below_min_value', 'temperature'],
  [
    chat({ temperature: 'hot' }),
    'invalid_type',
    'temperature',
    "Invalid type for 'temperature': expected a decimal, but got a string instead.",
  ],
  [
    JSON.parse(JSON.stringify(chat({ temperature: 0.5 })).replace('0.5', '1e400')),
    'invalid_type',
    'temperature',
    "Invalid type for 'temperature': expected a decimal, but got a number that is too large instead.",
  ],
  [chat({ top_p: 1.01 }), 'decimal_above_max_value', 'top_p'],
  [chat({ frequency_penalty: 2.5 }), 'decimal_above_max_value', 'frequency_penalty'],
  [chat({ presence_penalty: -2.5 }), 'decimal_below_min_value', 'presence_penalty'],
  [
    chat({ n: 0 }),
    'integer_below_min_value',
    'n',
    "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.",
  ],
  [chat({ n: 129 }), 'integer_above_max_value', 'n'],
  [
    chat({ n: 1.5 }),
    'invalid_type',
    'n',
    "Invalid type for 'n': expected an integer, but got a decimal number instead.",
  ],
  [chat({ n: '1' }), 'invalid_type', 'n', "Invalid type for 'n': expected an integer, but got a string instead."],
  [chat({ seed: 1.5 }), 'invalid_type', 'seed'],
  [chat({ seed: 1e19 }), 'integer_above_max_value', 'seed'],
  [chat({ logit_bias: { 50256: 101 } }), 'integer_above_max_value', 'logit_bias.50256'],
  [chat({ logit_bias: [] }), 'invalid_type', 'logit_bias'],
  [chat({ top_logprobs: 21, logprobs: true }), 'integer_above_max_value', 'top_logprobs'],
  [
    chat({ top_logprobs: 2 }),
    'invalid_value',
    'top_logprobs',
    "Invalid 'top_logprobs': it is only allowed when 'logprobs' is true.",
  ],
  [chat({ stream_options: { include_usage: true } }), 'invalid_value', 'stream_options'],
  [chat({ stream_options: {}, stream: false }), 'invalid_value', 'stream_options'],
  [chat({ stream: 'yes' }), 'invalid_type', 'stream'],
  [chat({ stop: [] }), 'empty_array', 'stop'],
  [
    chat({ stop: ['a', 'b', 'c', 'd', 'e'] }),
    'array_above_max_length',
    'stop',
    "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 5 instead.",
  ],
  [chat({ stop: ['a', 1] }), 'invalid_type', 'stop[1]'],
  [
    chat({ stop: 7 }),
    'invalid_type',
    'stop',
    "Invalid type for 'stop': expected a string or an array, but got an integer instead.",
  ],
  [
    chat({ tools: [{ type: 'custom' }] }),
    'invalid_value',
    'tools[0].type',
    "Invalid value: 'custom'. Supported values are: 'function'.",
  ],
  [chat({ tools: [{ type: 'function' }] }), 'missing_required_parameter', 'tools[0].function'],
  [
    chat({ tools: [{ type: 'function', function: { name: 'get weather' } }] }),
    'invalid_value',
    'tools[0].function.name',
    "Invalid 'tools[0].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
  ],
  [
    chat({ tools: [{ type: 'function', function: { name: 'x'.repeat(65) } }] }),
    'string_above_max_length',
    'tools[0].function.name',
    "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a string with length 65 instead.",
  ],
  [
    chat({ tools: Array.from({ length: 129 }, () => ({ type: 'function', function: { name: 'f' } })) }),
    'array_above_max_length',
    'tools',
  ],
  [
    chat({ tool_choice: 'never' }),
    'invalid_value',
    'tool_choice',
    "Invalid value: 'never'. Supported values are: 'none', 'auto', and 'required'.",
  ],
  [
    chat({ tool_choice: 5 }),
    'invalid_type',
    'tool_choice',
    "Invalid type for 'tool_choice': expected a string or an object, but got an integer instead.",
  ],
  [chat({ tool_choice: { type: 'function' } }), 'missing_required_parameter', 'tool_choice.function'],
  [chat({ function_call: { arguments: '' } }), 'missing_required_parameter', 'function_call.name'],
  [chat({ functions: [] }), 'empty_array', 'functions'],
  [chat({ response_format: { type: 'xml' } }), 'invalid_value', 'response_format.type'],
  [chat({ response_format: {} }), 'missing_required_parameter', 'response_format.type'],
  [chat({ response_format: { type: 'json_schema' } }), 'missing_required_parameter', 'response_format.json_schema'],
  [
    chat({ response_format: { type: 'json_schema', json_schema: { name: 'a b' } } }),
    'invalid_value',
    'response_format.json_schema.name',
  ],
  [chat({ thinking: { type: 'on' } }), 'invalid_value', 'thinking.type'],
  [chat({ thinking: { type: 'enabled', budget_tokens: 0 } }), 'integer_below_min_value', 'thinking.budget_tokens'],
  [chat({ user: 7 }), 'invalid_type', 'user'],
  [[], 'invalid_type', null, 'Invalid type for the request body: expected an object, but got an array instead.'],
  [null, 'invalid_type', null],
  ['hello', 'invalid_type', null],
])('a chat body %j is refused as %s of %s', (body, code, param, message) => {
  const problem = refusal(ChatCompletionRequest, body);
  expect(problem).toEqual({ code, param, message: message ?? problem.message });
});

test('a chat body passes whole: unknown members and parts, nulls, odd keys, and no default is written', () => {
  const body = {
    ...chat({ temperature: null, n: null, stop: null, seed: -(2 ** 63), stream_options: null, top_logprobs: null }),
    reasoning_effort: 'low',
    future: { deep: [1, null] },
    messages: [
      { role: 'system', content: 'be brief', cache_control: { type: 'ephemeral' } },
      { role: 'developer', content: [{ type: 'text', text: 'x' }] },
      { role: 'user', content: [{ type: 'input_audio', input_audio: {} }, { type: 'constructor' }] },
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'a', type: 'function', function: { name: 'f', arguments: '{' } }],
      },
      { role: 'tool', content: 'x', tool_call_id: 'a' },
      { role: 'function', content: null, name: 'f' },
    ],
  };
  expect(parseWith(ChatCompletionRequest, body)).toEqual(body);
});

test('a key named __proto__ pollutes nothing', () => {
  const body: unknown = JSON.parse(
    '{"model":"m","messages":[{"role":"user","content":"x"}],"__proto__":{"polluted":1}}',
  );
  const parsed = parseWith(ChatCompletionRequest, body);
  expect(Object.getPrototypeOf(parsed)).toBe(Object.prototype);
  expect(({} as Record<string, unknown>)['polluted']).toBeUndefined();
});

test.each([
  ['{"metadata":{"a":"b","__proto__":"x"}}', 'body.metadata.__proto__'],
  ['{"a":[1,null,{"b":{"__proto__":{"c":1}}}]}', 'body.a[2].b.__proto__'],
])('of %s the member that would be lost is refused by its path', (text, param) => {
  const message = `Invalid '${param}': the name '__proto__' is not allowed. Choose another name.`;
  expect(() => refuseProtoMembers(JSON.parse(text), 'body')).toThrow(
    expect.objectContaining({ kind: 'invalid_request', code: 'invalid_value', param, message }),
  );
});

test.each(['{"a":"__proto__","constructor":{"prototype":1}}', '"__proto__"', 'null'])('%s loses nothing', (text) => {
  expect(() => refuseProtoMembers(JSON.parse(text))).not.toThrow();
});

test.each<[object, string, string]>([
  [{ model: 'm' }, 'missing_required_parameter', 'prompt'],
  [{ prompt: 'x' }, 'missing_required_parameter', 'model'],
  [{ model: 'm', prompt: 5 }, 'invalid_type', 'prompt'],
  [{ model: 'm', prompt: [] }, 'empty_array', 'prompt'],
  [{ model: 'm', prompt: ['a', 1] }, 'invalid_type', 'prompt'],
  [{ model: 'm', prompt: 'x', best_of: 21 }, 'integer_above_max_value', 'best_of'],
  [{ model: 'm', prompt: 'x', best_of: 2, n: 2 }, 'invalid_value', 'best_of'],
  [{ model: 'm', prompt: 'x', best_of: 3, stream: true }, 'invalid_value', 'best_of'],
  [{ model: 'm', prompt: 'x', logprobs: 6 }, 'integer_above_max_value', 'logprobs'],
  [{ model: 'm', prompt: 'x', logprobs: true }, 'invalid_type', 'logprobs'],
  [{ model: 'm', prompt: 'x', max_tokens: -1 }, 'integer_below_min_value', 'max_tokens'],
  [{ model: 'm', prompt: 'x', stream_options: { include_usage: true } }, 'invalid_value', 'stream_options'],
  [{ model: 'm', prompt: 'x', logit_bias: { 1: -100.5 } }, 'decimal_below_min_value', 'logit_bias.1'],
])('a completion body %j is refused as %s of %s', (body, code, param) => {
  expect(refusal(CompletionRequest, body)).toMatchObject({ code, param });
});

test.each([
  { prompt: 'x' },
  { prompt: null },
  { prompt: ['a', 'b'] },
  { prompt: [1, 2] },
  { prompt: [[1], [2, 3]] },
  { prompt: 'x', best_of: 3, n: 2, max_tokens: 0 },
  { prompt: 'x', best_of: 1, stream: true },
])('a completion body with %j passes', (fields) => {
  expect(tryParse(CompletionRequest, { model: 'm', ...fields }).ok).toBe(true);
});

test.each<[object, string, string]>([
  [{ model: 'm' }, 'missing_required_parameter', 'input'],
  [{ model: 'm', input: null }, 'invalid_type', 'input'],
  [{ model: 'm', input: [] }, 'empty_array', 'input'],
  [{ model: 'm', input: Array(2_049).fill('x') }, 'array_above_max_length', 'input'],
  [{ model: 'm', input: [[1], Array(2_049).fill(1)] }, 'array_above_max_length', 'input[1]'],
  [{ model: 'm', input: [1.5] }, 'invalid_type', 'input'],
  [{ model: 'm', input: 'x', encoding_format: 'hex' }, 'invalid_value', 'encoding_format'],
  [{ model: 'm', input: 'x', dimensions: 0 }, 'integer_below_min_value', 'dimensions'],
])('an embedding body is refused as %j %s of %s', (body, code, param) => {
  expect(refusal(EmbeddingRequest, body)).toMatchObject({ code, param });
});

const pairs = (count: number) => Object.fromEntries(Array.from({ length: count }, (_, index) => [`k${index}`, 'v']));

test.each<[object, string, string | null, string?]>([
  [
    { endpoint: '/v1/chat/completions', completion_window: '24h' },
    'missing_required_parameter',
    'input_file_id',
    "Missing required parameter: 'input_file_id'.",
  ],
  [
    batch({ endpoint: '/v1/x' }),
    'invalid_value',
    'endpoint',
    "Invalid value: '/v1/x'. Supported values are: '/v1/chat/completions', '/v1/completions', '/v1/embeddings', '/v1/messages', '/v1/responses', '/v1/moderations', and '/v1/images/generations'.",
  ],
  [batch({ endpoint: 5 }), 'invalid_type', 'endpoint'],
  [
    batch({ completion_window: '12h' }),
    'invalid_value',
    'completion_window',
    "Invalid value: '12h'. Supported values are: 'immediate' and '24h'.",
  ],
  [
    batch({ metadata: { tags: ['\u0000'] } }),
    'invalid_value',
    'metadata.tags',
    "Invalid 'metadata.tags': expected well-formed Unicode text without the character U+0000.",
  ],
  [batch({ metadata: 'x' }), 'invalid_type', 'metadata'],
  [batch({ metadata: pairs(17) }), 'object_above_max_properties', 'metadata'],
  [batch({ metadata: { ['k'.repeat(65)]: 'v' } }), 'string_above_max_length', 'metadata'],
  [batch({ metadata: { k: 'v'.repeat(513) } }), 'string_above_max_length', 'metadata.k'],
  [batch({ metadata: { k: '\ud800' } }), 'invalid_value', 'metadata.k'],
  [batch({ metadata: { k: 'a\0b' } }), 'invalid_value', 'metadata.k'],
  [batch({ metadata: { 'a\0b': 'v' } }), 'invalid_value', 'metadata'],
  [batch({ input_file_id: '' }), 'empty_string', 'input_file_id'],
  [batch({ input_file_id: 'a\0' }), 'invalid_value', 'input_file_id'],
  [batch({ colour: 'red' }), 'unknown_parameter', 'colour', "Unknown parameter: 'colour'."],
  [
    batch({ output_expires_after: { anchor: 'created_at', seconds: 3_599 } }),
    'integer_below_min_value',
    'output_expires_after.seconds',
  ],
  [batch({ output_expires_after: { anchor: 'x', seconds: 3_600 } }), 'invalid_value', 'output_expires_after.anchor'],
  [batch({ gateway_options: { colour: 1 } }), 'unknown_parameter', 'gateway_options.colour'],
  [
    batch({ provider_options: { 'x-portkey-virtual-key': 5 } }),
    'invalid_type',
    'provider_options.x-portkey-virtual-key',
  ],
  [batch({ gateway_options: {}, portkey_options: {} }), 'invalid_value', 'portkey_options'],
  [
    batch({ gateway_options: { virtual_key: 'a', 'x-gateway-virtual-key': 'b' } }),
    'invalid_value',
    'gateway_options.x-gateway-virtual-key',
    "Invalid 'gateway_options.x-gateway-virtual-key': it is also set by 'gateway_options.virtual_key'. Send only one of them.",
  ],
])('a batch body %j is refused as %s of %s', (body, code, param, message) => {
  const problem = refusal(CreateBatchRequest, body);
  expect(problem).toEqual({ code, param, message: message ?? problem.message });
});

test('the limits of batch metadata count code points and admit their own values', () => {
  const metadata = { ...pairs(15), ['k'.repeat(64)]: '😀'.repeat(512) };
  expect(parseWith(CreateBatchRequest, batch({ metadata })).metadata).toEqual(metadata);
});

test.each(['gateway_options', 'portkey_options', 'provider_options'])('%s in any spelling become one form', (alias) => {
  const options = { 'x-portkey-virtual-key': 'main', 'x-gateway-config': { retry: {} }, provider_model: 'm' };
  const parsed = parseWith(CreateBatchRequest, batch({ [alias]: options, metadata: null }));
  expect(parsed).toEqual(
    batch({ metadata: null, gateway_options: { virtual_key: 'main', config: { retry: {} }, provider_model: 'm' } }),
  );
});

test('list queries read whole numbers and apply their defaults', () => {
  expect(parseWith(BatchListQuery, {})).toEqual({ limit: 20 });
  expect(parseWith(BatchListQuery, { limit: '100', after: 'batch_1' })).toEqual({
    limit: 100,
    after: 'batch_1',
  });
  expect(parseWith(FileListQuery, {})).toEqual({ limit: 10_000, order: 'desc' });
  expect(refusal(BatchListQuery, { limit: '0' })).toMatchObject({ code: 'integer_below_min_value', param: 'limit' });
  expect(refusal(BatchListQuery, { limit: '101' })).toMatchObject({ code: 'integer_above_max_value', param: 'limit' });
  expect(refusal(BatchListQuery, { limit: 'many' })).toMatchObject({ code: 'invalid_type', param: 'limit' });
  expect(refusal(BatchListQuery, { limit: ['1', '2'] })).toMatchObject({ code: 'invalid_type', param: 'limit' });
  expect(refusal(FileListQuery, { order: 'up' })).toMatchObject({ code: 'invalid_value', param: 'order' });
});

test('filters of fine-tuning jobs are pairs, or no metadata at all', () => {
  const filterOf = (query: object) => parseWith(FineTuningJobListQuery, query).metadata;
  expect([filterOf({}), filterOf({ metadata: '' }), filterOf({ metadata: 'null' })]).toEqual([null, 'none', 'none']);
  expect(filterOf({ 'metadata[a]': '1', 'metadata[constructor]': '2' })).toEqual({ a: '1', constructor: '2' });
  const bad = { code: 'invalid_value', param: 'metadata[__proto__]' };
  expect(refusal(FineTuningJobListQuery, { 'metadata[__proto__]': 'x' })).toMatchObject(bad);
  expect(refusal(FineTuningJobListQuery, { 'metadata[a]': '\0' })).toMatchObject({ param: 'metadata' });
});

test('upload fields read the bracketed expiry as text', () => {
  const fields = { purpose: 'batch', expires_after: { anchor: 'created_at', seconds: '3600' } };
  expect(parseWith(FileUploadFields, fields)).toEqual({
    purpose: 'batch',
    expires_after: { anchor: 'created_at', seconds: 3_600 },
  });
  expect(parseWith(FileUploadFields, { purpose: 'vision' })).toEqual({ purpose: 'vision' });
  const late = { purpose: 'batch', expires_after: { anchor: 'created_at', seconds: '2592001' } };
  expect(refusal(FileUploadFields, late)).toMatchObject({
    code: 'integer_above_max_value',
    param: 'expires_after.seconds',
  });
});

test('API keys take known scopes and a time in either form', () => {
  const CreateApiKeyRequest = z.strictObject(apiKeyFields);
  const parsed = parseWith(CreateApiKeyRequest, { name: 'ci', scopes: ['batches.write'], expires_at: 1_800_000_000 });
  expect(parsed.expires_at).toEqual(new Date(1_800_000_000_000));
  expect(parseWith(CreateApiKeyRequest, { name: 'ci', expires_at: '2027-01-15T08:00:00Z' }).expires_at).toEqual(
    new Date(1_800_000_000_000),
  );
  expect(refusal(CreateApiKeyRequest, { name: 'ci', scopes: [''] }).param).toBe('scopes[0]');
  expect(refusal(CreateApiKeyRequest, { name: 'ci', expires_at: 'soon' }).param).toBe('expires_at');
  expect(refusal(CreateApiKeyRequest, { name: 'ci', expires_at: 1e17 }).param).toBe('expires_at');
  expect(refusal(CreateApiKeyRequest, { name: 'ci', defaults: { x: 1 } }).param).toBe('defaults.x');
});

test('virtual keys refuse unknown settings, slugs and hosts, and take a service account as an object', () => {
  const Request = z.strictObject(virtualKeyFields);
  const bedrock = { name: 'b', provider: 'bedrock', aws_region: 'eu-west-1', aws_secret_access_key: 's' };
  expect(parseWith(Request, bedrock)).toEqual(bedrock);
  const account = { type: 'service_account', private_key: 'p' };
  const vertex = parseWith(Request, { name: 'v', provider: 'vertex', vertex_service_account_json: account });
  expect(vertex.vertex_service_account_json).toBe(JSON.stringify(account));
  const openai = { name: 'o', provider: 'openai', key: 'k' };
  expect(refusal(Request, { ...openai, azure_colour: 'x' }).param).toBe('azure_colour');
  expect(refusal(Request, { ...openai, custom_host: 'ftp://x' }).param).toBe('custom_host');
  expect(refusal(Request, { ...openai, custom_host: 'http://a@x' }).param).toBe('custom_host');
});

test('a message does not carry a long value back', () => {
  const problem = refusal(CreateBatchRequest, batch({ endpoint: 'x'.repeat(100_000), ['y'.repeat(100_000)]: 1 }));
  expect(problem.message.length).toBeLessThan(500);
  expect(refusal(CreateBatchRequest, batch({ ['y'.repeat(100_000)]: 1 })).message.length).toBeLessThan(500);
});

test('a prefix is put before every param and name', () => {
  const result = tryParse(ChatCompletionRequest, chat({ stream_options: {} }), 'body');
  expect(result).toEqual({
    ok: false,
    problem: {
      code: 'invalid_value',
      param: 'body.stream_options',
      message: "Invalid 'body.stream_options': it is only allowed when 'body.stream' is true.",
    },
  });
});
