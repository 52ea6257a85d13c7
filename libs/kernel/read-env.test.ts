import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { z } from 'zod';
import { byteSize, ConfigurationError, duration, readEnv, wholeNumber } from './read-env.ts';

describe('readEnv', () => {
  const schema = z.object({ PORT: wholeNumber(8787, { min: 0, max: 65_535 }), NAME: z.string().optional() });

  test('returns defaults for variables that are absent, empty or blank', () => {
    expect(readEnv(schema, {})).toEqual({ PORT: 8787 });
    expect(readEnv(schema, { PORT: '', NAME: '' })).toEqual({ PORT: 8787 });
    expect(readEnv(schema, { PORT: ' ', NAME: '\t' })).toEqual({ PORT: 8787 });
  });

  test('ignores variables that the schema does not name', () => {
    expect(readEnv(schema, { PORT: '1', HOME: '/root' })).toEqual({ PORT: 1 });
  });

  test('reports all problems at once, by name and without values', () => {
    const strict = z.object({
      SECRET_KEY: z.string().regex(/^[0-9a-f]{64}$/),
      PORT: wholeNumber(1, { min: 1, max: 65_535 }),
      MODE: z.enum(['a', 'b']),
      WAIT: duration('1s', { minMs: 1, maxMs: 10_000 }),
      SIZE: byteSize('1KiB', { minBytes: 1, maxBytes: 10_000 }),
      DATABASE_URL: z.string(),
    });
    const env = { SECRET_KEY: 'hunter2', PORT: '70000', MODE: 'hunter3', WAIT: 'hunter4', SIZE: 'hunter5' };
    const { message } = getFailureCode(() => readEnv(strict, env));
    for (const name of ['SECRET_KEY', 'PORT', 'MODE', 'WAIT', 'SIZE', 'DATABASE_URL']) {
      expect(message).toContain(`${name}:`);
    }
    expect(message).not.toMatch(/hunter|70000/);
    expect(message.split('\n')).toHaveLength(7);
  });

  test('reads DATABASE_URL and SLUICE_MASTER_KEY from the files that orchestrators mount', () => {
    const folder = mkdtempSync(path.join(tmpdir(), 'sluice-env-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const file = path.join(folder, 'secret');
    const secrets = z.object({ DATABASE_URL: z.string(), SLUICE_MASTER_KEY: z.string().optional() });
    writeFileSync(file, 'postgres://hunter2@db/x\n');
    expect(readEnv(secrets, { DATABASE_URL_FILE: file, DATABASE_URL: '' })).toEqual({
      DATABASE_URL: 'postgres://hunter2@db/x',
    });
    const both = getFailureCode(() =>
      readEnv(secrets, { DATABASE_URL_FILE: file, DATABASE_URL: 'postgres://x' }),
    ).message;
    expect(both).toContain('DATABASE_URL_FILE: cannot be set together with DATABASE_URL');
    expect(both).not.toContain('hunter2');
    writeFileSync(path.join(folder, 'empty'), '\n');
    for (const wrong of [path.join(folder, 'none'), folder, path.join(folder, 'empty')]) {
      const read = () => readEnv(secrets, { DATABASE_URL: 'x', SLUICE_MASTER_KEY_FILE: wrong });
      expect(getFailureCode(read).message).toContain(
        'SLUICE_MASTER_KEY_FILE: must be the path of a readable, non-empty text file',
      );
    }
  });
});

function getFailureCode(read: () => unknown): Error {
  try {
    read();
  } catch (error) {
    if (error instanceof ConfigurationError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

describe('wholeNumber', () => {
  const read = (value: string): unknown =>
    readEnv(z.object({ N: wholeNumber(5, { min: 1, max: 10 }) }), { N: value }).N;

  test('takes whole numbers within the bounds', () => {
    expect(['1', '10', ' 7 '].map(read)).toEqual([1, 10, 7]);
  });
  test.each(['0', '11', '1.5', '11.5', 'ten', '1e400', 'NaN'])('says once for %j what would be right', (value) => {
    const { message } = getFailureCode(() => read(value));
    expect(message.split('\n').slice(1)).toEqual(['  N: must be a whole number from 1 to 10']);
  });
  test.each(['0', '11', '1.5', 'ten', '1e400', 'NaN'])('rejects %j', (value) => {
    expect(() => read(value)).toThrow('N:');
  });
});

describe('duration', () => {
  const read = (value: string): unknown =>
    readEnv(z.object({ D: duration('20s', { minMs: 100, maxMs: 86_400_000 }) }), { D: value }).D;

  test.each([
    ['', 20_000],
    ['100ms', 100],
    ['1.5s', 1_500],
    ['10m', 600_000],
    ['24h', 86_400_000],
    ['1d', 86_400_000],
    [' 2s ', 2_000],
  ])('%j is %d ms', (value, ms) => {
    expect(read(value)).toBe(ms);
  });
  test.each(['99ms', '25h', '20', '20 s', '-1s', '1w', '1h30m', 's', '1e3s', 'Infinitys'])(
    'rejects %j and says what is right',
    (value) => {
      expect(() => read(value)).toThrow('D: must be a duration like 250ms, 20s, 10m or 24h, from 100ms to 1d');
    },
  );
});

describe('byteSize', () => {
  const read = (value: string): unknown =>
    readEnv(z.object({ S: byteSize('4MiB', { minBytes: 1_024, maxBytes: 2 * 1_073_741_824 }) }), { S: value }).S;

  test.each([
    ['', 4_194_304],
    ['1024', 1_024],
    ['512KiB', 524_288],
    ['64 MiB', 67_108_864],
    ['2GiB', 2_147_483_648],
  ])('%j is %d bytes', (value, bytes) => {
    expect(read(value)).toBe(bytes);
  });
  test.each(['1023', '3GiB', '64MB', '1.5MiB', '-1', 'KiB', '1TiB'])('rejects %j and says what is right', (value) => {
    expect(() => read(value)).toThrow('S: must be a size like 512KiB, 64MiB or 2GiB');
  });
});
