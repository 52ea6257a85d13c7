import { describe, expect, test } from 'vitest';
import { upstreamAt } from '#test/translation-call.ts';
import { getRegionAddress, getTargetLocation, parseVertexModel } from './address.ts';

const refused = (param: string, code = 'invalid_value') =>
  expect.objectContaining({ kind: 'invalid_request', code, param });
const hostile = ['..', '../x', 'a/b', 'a#b', 'a?b', 'a@b', 'a\\b', 'a%2fb', 'a b', 'a\r\nb', 'a..b', '.', '@', 'ä'];

describe('the region', () => {
  test.each([
    ['us-central1', 'us-central1-aiplatform.googleapis.com'],
    ['northamerica-northeast1', 'northamerica-northeast1-aiplatform.googleapis.com'],
    ['global', 'aiplatform.googleapis.com'],
    ['eu', 'aiplatform.eu.rep.googleapis.com'],
  ])('%s is at %s', (vertex_region, host) => {
    expect(getRegionAddress({ vertex_region })?.href).toBe(`https://${host}/v1`);
  });

  test('is needed for an address', () => {
    expect(getRegionAddress({})).toBeNull();
    expect(getRegionAddress({ vertex_region: '' })).toBeNull();
  });

  test.each([...hostile, 'us.evil.test', 'us-central1.evil.test', 'US-CENTRAL1', 'evil.test:443'])(
    'is never %j',
    (vertex_region) => {
      expect(() => getRegionAddress({ vertex_region })).toThrow(refused('vertex_region'));
      const settings = { vertex_region, vertex_project_id: 'p1' };
      expect(() => getTargetLocation(upstreamAt('http://127.0.0.1/v1', { settings }))).toThrow(
        refused('vertex_region'),
      );
    },
  );
});

describe('the project', () => {
  const at = (settings: Record<string, string>) =>
    getTargetLocation(upstreamAt('http://127.0.0.1:9/v1/', { settings: { vertex_region: 'eu', ...settings } }));

  test('and the region stand behind the folder of the address', () => {
    const origin = 'http://127.0.0.1:9';
    expect(at({ vertex_project_id: 'p-1' })).toEqual({ origin, path: '/v1/projects/p-1/locations/eu' });
    expect(at({ vertex_project_id: '123456' })).toEqual({ origin, path: '/v1/projects/123456/locations/eu' });
    expect(at({ vertex_project_id: 'example.com:p-1' }).path).toBe('/v1/projects/example.com%3Ap-1/locations/eu');
  });

  test('a missing project or region is named in the error', () => {
    expect(() => at({})).toThrow(refused('vertex_project_id', 'missing_setting'));
    expect(() => at({ vertex_region: '', vertex_project_id: 'p' })).toThrow(
      refused('vertex_region', 'missing_setting'),
    );
  });

  test.each(hostile)('is never %j', (vertex_project_id) => {
    expect(() => at({ vertex_project_id })).toThrow(refused('vertex_project_id'));
  });
});

describe('the model', () => {
  const google = '/publishers/google/models/';
  const anthropic = '/publishers/anthropic/models/';

  test.each([
    ['gemini-2.5-flash', 'google', `${google}gemini-2.5-flash`],
    ['google/gemini-2.5-flash', 'google', `${google}gemini-2.5-flash`],
    ['google.gemini-2.5-flash', 'google', `${google}gemini-2.5-flash`],
    ['endpoints/123', 'google', '/endpoints/123'],
    ['claude-sonnet-4-5@20250929', 'anthropic', `${anthropic}claude-sonnet-4-5@20250929`],
    ['anthropic.claude-opus-4-6', 'anthropic', `${anthropic}claude-opus-4-6`],
    ['meta/llama-4-maverick-17b-128e-instruct-maas', 'openapi', '/endpoints/openapi'],
    ['mistralai/mistral-small-2503', 'openapi', '/endpoints/openapi'],
  ])('%s is of %s', (name, publisher, path) => {
    expect(parseVertexModel(name)).toEqual({ publisher, path });
  });

  test.each([
    ...hostile.filter((name) => name !== 'a/b'),
    ...hostile.map((name) => `gemini-${name}/../x`),
    ...hostile.filter((name) => name !== 'a@b').map((name) => `claude-${name}#`),
    'gemini-a/b',
    'google/../x',
    'anthropic/a/b',
    'endpoints/../x',
    'endpoints/12a',
    'meta/../x',
    'meta/a/b',
    'llama-4',
    undefined,
  ])('is never %j', (name) => {
    expect(() => parseVertexModel(name)).toThrow(refused('model'));
  });
});
