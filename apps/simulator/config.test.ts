import { expect, test } from 'vitest';
import { readConfig } from './config.ts';

test('all unusable variables are named together and the key is not printable', () => {
  expect(() => readConfig({ PORT: 'x', SIMULATOR_LATENCY: 'soon', SIMULATOR_COUNT_CALLS: 'perhaps' })).toThrow(
    /PORT[^]*SIMULATOR_LATENCY[^]*SIMULATOR_COUNT_CALLS/,
  );
  const config = readConfig({ SIMULATOR_KEY: 'sk-canary', SIMULATOR_LATENCY: 'uniform:1ms:2ms' });
  expect(JSON.stringify(config)).not.toContain('sk-canary');
  expect(config.simulator.requiredKey?.reveal()).toBe('sk-canary');
});
