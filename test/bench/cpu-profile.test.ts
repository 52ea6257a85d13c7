import { expect, test } from 'vitest';
import { sumByPart } from './cpu-profile.ts';

const frames = [
  ['(root)', ''],
  ['(idle)', ''],
  ['(garbage collector)', ''],
  ['(program)', ''],
  ['writev', ''],
  ['onread', 'node:internal/stream_base_commons'],
  ['fetch', 'node:internal/deps/undici/undici'],
  ['wasm-function[1]', 'wasm:/wasm/00034eea'],
  ['query', 'file:///app/node_modules/pg/lib/client.js'],
  ['parse', 'file:///app/node_modules/a/node_modules/@b/c/index.js'],
  ['attempt', 'file:///app/libs/calls/attempt.ts'],
  ['retry', 'file:///app/libs/calls/attempt.ts'],
] as const;

test('the time of a profile is added up by part, without idle time, the largest part first', () => {
  const nodes = frames.map(([functionName, url], id) => ({ id, callFrame: { functionName, url } }));
  const samples = [1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1];
  // Each sample lasts until the next one, and the last one has no end.
  const timeDeltas = [0, 1_000, 90, 80, 60, 30, 31, 50, 5, 6, 40, 39, 500];
  expect(sumByPart({ nodes, samples, timeDeltas }, '/app')).toEqual([
    { part: { group: 'own code', name: 'libs/calls/attempt.ts' }, us: 170 },
    { part: { group: 'native code and system calls', name: null }, us: 61 },
    { part: { group: 'garbage collection', name: null }, us: 60 },
    { part: { group: 'Node', name: null }, us: 50 },
    { part: { group: 'other packages', name: 'pg' }, us: 40 },
    { part: { group: 'other packages', name: '@b/c' }, us: 39 },
    { part: { group: 'undici', name: null }, us: 11 },
  ]);
});
