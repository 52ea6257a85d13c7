import { describe, expect, test } from 'vitest';
import { toOwnPath } from './client-paths.ts';

describe('Google', () => {
  const canonical = '/v1beta/models/%40a%2Fb%3Afree:generateContent';

  test.each([
    '/v1beta/models/@a/b:free:generateContent',
    '/v1beta/models/%40a%2Fb%3Afree:generateContent',
    '/v1/models/@a/b:free:generateContent',
    '/v1beta/@a/b:free:generateContent',
    '/v1beta1/publishers/google/models/@a/b:free:generateContent',
    '/v1beta1/projects/p/locations/l/publishers/google/models/@a/b:free:generateContent',
  ])('%s is one path', (url) => {
    expect(toOwnPath(url, false)).toBe(canonical);
    expect(toOwnPath(`${url}?alt=sse`, false)).toBe(`${canonical}?alt=sse`);
  });

  test.each([
    '/v1/chat/completions',
    '/v1/models',
    '/v1/models/a:b',
    '/v1/messages?x=:',
    '/v1beta/nothing',
    '/v1beta/models2',
    '/health',
  ])('%s is not its path', (url) => {
    expect(toOwnPath(url, false)).toBeNull();
  });

  test('the list of models is that of Google for its clients', () => {
    expect(toOwnPath('/v1/models?pageSize=2', true)).toBe('/v1beta/models?pageSize=2');
    expect(toOwnPath('/v1/models/@a/b', true)).toBe('/v1beta/models/%40a%2Fb');
  });

  test('a key in the query is refused, without the key in the message', () => {
    const url = '/v1beta/models/m:generateContent?alt=sse&key=AIza-secret';
    expect(() => toOwnPath(url, false)).toThrow(expect.objectContaining({ code: 'key_in_url' }));
    expect(() => toOwnPath(url, false)).not.toThrow(/AIza/);
  });
});

test.each([
  ['/openai/v1/chat/completions', '/v1/chat/completions'],
  ['/openai/responses?api-version=2025-04-01-preview', '/v1/responses'],
  ['/openai/v1/files?api-version=v1&limit=2', '/v1/files?limit=2'],
  ['/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21', '/openai/deployments/gpt-4o/chat/completions'],
  ['/openai/deployments/@a/b/embeddings', '/openai/deployments/%40a%2Fb/embeddings'],
  ['/openai/deployments/gpt-4o/batches?api-version=1', null],
  ['/openai/deployments', '/v1/deployments'],
])('%s of Azure OpenAI is %s', (url, path) => {
  expect(toOwnPath(url, false)).toBe(path);
});

test.each([
  ['/model/us.anthropic.claude-v1:0/invoke', '/model/us.anthropic.claude-v1%3A0/invoke'],
  ['/model/%40a%2Fb/invoke-with-response-stream', '/model/%40a%2Fb/invoke-with-response-stream'],
  ['/model/@a/b/invoke', '/model/%40a%2Fb/invoke'],
  ['/model/m/converse', null],
  ['/models', null],
])('%s of Bedrock is %s', (url, path) => {
  expect(toOwnPath(url, false)).toBe(path);
});

test.each([
  ['claude@1:rawPredict', 'claude%401:rawPredict'],
  ['@a/b:streamRawPredict', '%40a%2Fb:streamRawPredict'],
])('%s of Vertex AI has the model in one segment', (sent, own) => {
  const url = `/v1/projects/p/locations/l/publishers/anthropic/models/${sent}`;
  expect(toOwnPath(url, false)).toBe(`/v1/publishers/anthropic/models/${own}`);
});

test('a malformed escape is an error of the client', () => {
  expect(() => toOwnPath('/model/%zz/invoke', false)).toThrow(URIError);
});
