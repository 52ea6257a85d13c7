import { expect, test } from 'vitest';
import { readEnv } from '#libs/kernel/read-env.ts';
import { ApiConfig } from './config.ts';

const read = (origins?: string) =>
  readEnv(ApiConfig, {
    DATABASE_URL: 'postgres://localhost/sluice',
    SLUICE_MASTER_KEY: 'a'.repeat(64),
    SLUICE_BLOBS: 'file:/tmp/blobs',
    SLUICE_CORS_ORIGINS: origins,
  }).SLUICE_CORS_ORIGINS;

test('origins of web pages are listed as browsers write them, or are all of them, or none', () => {
  expect(read()).toBeUndefined();
  expect(read('*')).toBe('any');
  expect(read('https://app.example, http://localhost:3000,tauri://localhost')).toEqual(
    new Set(['https://app.example', 'http://localhost:3000', 'tauri://localhost']),
  );
});

test.each(['app.example', 'https://app.example/', 'https://app.example/path', 'https://App.example', '*,https://a.b'])(
  'an origin %s, which no browser would send, is refused at start',
  (origins) => {
    expect(() => read(origins)).toThrow(/SLUICE_CORS_ORIGINS: must be \* or a list of origins/);
  },
);
