import { expect, test } from 'vitest';
import { readEnv } from '#libs/kernel/read-env.ts';
import { ApiConfig } from '../config.ts';
import { divideSettings } from './divide-settings.ts';

const read = (variables: Record<string, string>): ApiConfig =>
  readEnv(ApiConfig, { DATABASE_URL: 'postgres://localhost/sluice', SLUICE_MASTER_KEY: 'a'.repeat(64), ...variables });

test('the processes share what is configured, and none has less than a process needs', () => {
  const divided = divideSettings(
    read({
      SLUICE_API_PROCESSES: '4',
      SLUICE_MEMORY_MAX: '200MiB',
      SLUICE_DB_POOL_MAX: '3',
      SLUICE_WRONG_KEYS_PER_MINUTE: '0',
      SLUICE_CALLS_PER_CREDENTIAL: '10',
    }),
  );
  expect(divided).toMatchObject({
    SLUICE_MEMORY_MAX: String(50 * 1_048_576),
    SLUICE_DB_POOL_MAX: '2',
    SLUICE_WRONG_KEYS_PER_MINUTE: '0',
    SLUICE_CALLS_PER_CREDENTIAL: '3',
  });
});

test('a process accepts its share of the smallest settings', () => {
  const smallest = {
    SLUICE_MEMORY_MAX: '4MiB',
    SLUICE_CACHE_MEMORY: '64KiB',
    SLUICE_PROMPT_CACHE: '64KiB',
    SLUICE_CHECK_THREADS: '1',
    SLUICE_DB_POOL_MAX: '2',
    SLUICE_CALLS_PER_CREDENTIAL: '1',
    SLUICE_CONNECTIONS: '4',
    SLUICE_PROVIDER_QUEUE: '0',
    SLUICE_REQUEST_LOG_DISK: '0',
    SLUICE_REQUEST_LOG_QUEUE: '100',
    SLUICE_EVENT_STREAMS_MAX: '1',
    SLUICE_EVENT_STREAMS_OF_WORKSPACE: '1',
    SLUICE_ANALYTICS_QUERIES: '1',
    SLUICE_ANALYTICS_WAITING: '0',
    SLUICE_WRONG_KEYS_PER_MINUTE: '0',
  };
  const divided = divideSettings(read({ ...smallest, SLUICE_API_PROCESSES: '64' }));
  expect(Object.keys(divided).toSorted()).toEqual(Object.keys(smallest).toSorted());
  expect(() => read(divided)).not.toThrow();
});
