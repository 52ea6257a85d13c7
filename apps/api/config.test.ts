import { availableParallelism } from 'node:os';
import { expect, test } from 'vitest';
import { readEnv } from '#libs/kernel/read-env.ts';
import { ApiConfig } from './config.ts';

const readWith = (variables: Record<string, string | undefined>) =>
  readEnv(ApiConfig, {
    DATABASE_URL: 'postgres://localhost/sluice',
    SLUICE_MASTER_KEY: 'a'.repeat(64),
    SLUICE_BLOBS: 'file:/tmp/blobs',
    ...variables,
  });
const read = (origins?: string) => readWith({ SLUICE_CORS_ORIGINS: origins }).SLUICE_CORS_ORIGINS;

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

test('the public address may have a path, and is the one of the installation, not of the API’s version', () => {
  const publicUrl = (url: string) => readWith({ SLUICE_PUBLIC_URL: url }).SLUICE_PUBLIC_URL;
  expect(publicUrl('https://llm.example.com/')).toBe('https://llm.example.com');
  expect(publicUrl('https://example.com/llm')).toBe('https://example.com/llm');
  for (const url of ['llm.example.com', 'ftp://a.b', 'https://a.b/v1', 'https://a.b/v1/', 'https://a.b/?x=1'])
    expect(() => publicUrl(url)).toThrow(/SLUICE_PUBLIC_URL/);
});

test('the number of processes is one, a number, or that of the cores', () => {
  const processes = (text?: string) => readWith({ SLUICE_API_PROCESSES: text }).SLUICE_API_PROCESSES;
  expect([processes(), processes('4')]).toEqual([1, 4]);
  expect(processes('auto')).toBe(Math.min(8, availableParallelism()));
  for (const text of ['0', '65', '1.5', 'many'])
    expect(() => processes(text)).toThrow('SLUICE_API_PROCESSES: must be auto or a whole number from 1 to 64');
});
