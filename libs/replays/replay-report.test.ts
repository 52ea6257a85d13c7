import { expect, test } from 'vitest';
import { classifyLine, ReplayReporter, type ComparedLine, type Side } from './replay-report.ts';

const side = (members: Partial<Side> = {}): Side => ({
  succeeded: true,
  body: {},
  facts: { upstream_ms: 100, input_tokens: 10, output_tokens: 5, cost: '0.5' },
  isValid: null,
  ...members,
});

test('a line is classified by which side failed, then by its schema, then by its content', () => {
  const failed = side({ succeeded: false });
  expect(classifyLine(null, side(), null)).toBeNull();
  expect(classifyLine(failed, failed, null)).toBeNull();
  expect(classifyLine(side(), failed, null)).toBe('replay_failed');
  expect(classifyLine(failed, side(), null)).toBe('original_failed');
  expect(classifyLine(side({ isValid: true }), side({ isValid: false }), false)).toBe('schema_broken');
  expect(classifyLine(side({ isValid: false }), side({ isValid: false }), false)).toBe('different');
  expect(classifyLine(side(), side(), true)).toBe('equal');
  expect(classifyLine(side(), side(), null)).toBeNull();
});

const line = (number: number, members: Partial<ComparedLine>): ComparedLine => ({
  line: number,
  custom_id: `line-${number}`,
  original_line: null,
  similarity: null,
  kind: 'equal',
  original: side(),
  replay: side(),
  ...members,
});

test('a report adds up both sides and has the worst differences first', () => {
  const reporter = new ReplayReporter();
  reporter.add(line(1, { similarity: 1 }));
  reporter.add(line(2, { kind: 'different', similarity: 0.9 }));
  reporter.add(line(3, { kind: 'different', similarity: 0.1, replay: side({ isValid: false }) }));
  reporter.add(line(4, { kind: 'replay_failed', replay: side({ succeeded: false, facts: null }) }));
  reporter.add(line(5, { kind: 'schema_broken', similarity: 0.5, original: side({ isValid: true }) }));
  reporter.add(line(6, { kind: null, original: null }));
  expect(reporter.report()).toEqual({
    original: {
      answered: 5,
      failed: 0,
      with_record: 5,
      input_tokens: 50,
      output_tokens: 25,
      unpriced: 0,
      valid: 1,
      invalid: 0,
      latency_ms: { p50: 100, p95: 100, p99: 100 },
      cost_usd: '0.025',
    },
    replay: {
      answered: 5,
      failed: 1,
      with_record: 5,
      input_tokens: 50,
      output_tokens: 25,
      unpriced: 0,
      valid: 0,
      invalid: 1,
      latency_ms: { p50: 100, p95: 100, p99: 100 },
      cost_usd: '0.025',
    },
    equal: 1,
    different: 3,
    not_compared: 2,
  });
  expect(reporter.differences().map(({ line: number }) => number)).toEqual([4, 5, 3, 2]);
});

test('a report has at most 100 differences, and the worst of them, however many there are', () => {
  const reporter = new ReplayReporter();
  for (let number = 1; number <= 5_000; number += 1)
    reporter.add(line(number, { kind: 'different', similarity: (5_000 - number) / 10_000 }));
  const found = reporter.differences();
  expect([found.length, found[0]?.line, found.at(-1)?.line]).toEqual([100, 5_000, 4_901]);
});

test('the latencies are percentiles of answered calls, and a cost without a price is unknown', () => {
  const reporter = new ReplayReporter();
  for (let number = 1; number <= 100; number += 1) {
    const facts = { upstream_ms: number, input_tokens: null, output_tokens: null, cost: null };
    reporter.add(line(number, { replay: side({ facts, succeeded: number < 100 }) }));
  }
  expect(reporter.report().replay).toMatchObject({
    cost_usd: null,
    unpriced: 100,
    latency_ms: { p50: 50, p95: 95, p99: 99 },
  });
});
