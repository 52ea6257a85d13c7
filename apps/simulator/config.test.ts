import { expect, test } from 'vitest';
import { readConfig } from './config.ts';

test('an empty environment gives the documented defaults', () => {
  const { logLevel, simulator } = readConfig({});
  expect(logLevel).toBe('info');
  expect(simulator).toMatchObject({
    port: 8790,
    host: '127.0.0.1',
    latency: { type: 'fixed', ms: 0 },
    countCalls: false,
  });
});

test('all unusable variables are named together and the key is not printable', () => {
  expect(() => readConfig({ PORT: 'x', SIMULATOR_LATENCY: 'soon', SIMULATOR_COUNT_CALLS: 'perhaps' })).toThrow(
    /PORT[^]*SIMULATOR_LATENCY[^]*SIMULATOR_COUNT_CALLS/,
  );
  const config = readConfig({ SIMULATOR_KEY: 'sk-canary', SIMULATOR_LATENCY: 'uniform:1ms:2ms' });
  expect(JSON.stringify(config)).not.toContain('sk-canary');
  expect(config.simulator.requiredKey?.reveal()).toBe('sk-canary');
});
