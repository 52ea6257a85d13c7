import { expect, test } from 'vitest';
import type { Attempt, GuardrailRun, Target } from '#libs/calls/call.ts';
import { listVerdicts, selectSteps } from './call-steps.ts';

const attempt = (startedAt: number, more: Partial<Attempt> = {}): Attempt => ({
  startedAt,
  durationMs: 10.123,
  status: 200,
  errorCode: null,
  to: { target: { provider: 'openai', label: 'main' } as Target, model: 'm' },
  ...more,
});
const run = (kind: GuardrailRun['kind'], startedAt: number): GuardrailRun => ({
  kind,
  startedAt,
  durationMs: 3,
  outcome: 'passed',
  verdicts: [{ id: kind, slug: null, version: null, verdict: 'passed' }],
});

test('one attempt that was made at once and answered has no steps', () => {
  expect(selectSteps(1_000, [attempt(1_001)], undefined)).toBeNull();
  expect(selectSteps(1_000, [], undefined)).toBeNull();
});

test('an attempt that failed, or had to wait, has its time and place', () => {
  const place = { provider: 'openai', target: 'main', model: 'm' };
  expect(selectSteps(1_000, [attempt(1_500)], undefined)).toEqual([
    { kind: 'attempt', at_ms: 500, duration_ms: 10.12, status: 200, ...place },
  ]);
  expect(selectSteps(1_000, [attempt(1_500)], undefined, 'batch')).toBeNull();
  expect(selectSteps(1_000, [attempt(2_500)], undefined, 'batch')).toHaveLength(1);
  expect(selectSteps(1_000, [attempt(1_000, { status: null, errorCode: 'upstream\0lost' })], undefined)).toEqual([
    { kind: 'attempt', at_ms: 0, duration_ms: 10.12, status: null, error_code: 'upstream\u{FFFD}lost', ...place },
  ]);
});

test('guardrails and attempts are in the order in which they were', () => {
  const steps = selectSteps(1_000, [attempt(1_003)], [run('input_guardrails', 1_000), run('output_guardrails', 1_013)]);
  expect(steps?.map(({ kind, at_ms }) => `${kind} ${at_ms}`)).toEqual([
    'input_guardrails 0',
    'attempt 3',
    'output_guardrails 13',
  ]);
});

test('of a thousand attempts the first and the last are kept, with texts cut', () => {
  const model = 'm'.repeat(10_000);
  const to = { target: { provider: 'openai', label: 'main' } as Target, model };
  const attempts = Array.from({ length: 1_000 }, (_each, index) => attempt(1_000 + index, { status: 429, to }));
  const steps = selectSteps(1_000, attempts, undefined) ?? [];
  expect(steps.map(({ at_ms }) => at_ms)).toEqual([
    ...Array.from({ length: 12 }, (_each, index) => index),
    ...Array.from({ length: 12 }, (_each, index) => 988 + index),
  ]);
  expect(JSON.stringify(steps).length).toBeLessThan(10_000);
});

test('every guardrail of every run has its result, and of very many the last are kept', () => {
  expect(listVerdicts(undefined)).toBeNull();
  const stored = { id: 'guardrail_1', slug: 'no-secrets', version: 3, verdict: 'denied' } as const;
  const runs: GuardrailRun[] = [
    run('input_guardrails', 1_000),
    { ...run('output_guardrails', 1_010), verdicts: [stored] },
  ];
  expect(listVerdicts(runs)).toEqual([
    { kind: 'input_guardrails', id: 'input_guardrails', slug: null, version: null, verdict: 'passed' },
    { kind: 'output_guardrails', ...stored },
  ]);
  const many = Array.from({ length: 300 }, (_each, index) => ({ ...stored, version: index, id: 'x'.repeat(1_000) }));
  const kept = listVerdicts([{ ...run('input_guardrails', 0), verdicts: many }]) ?? [];
  expect(kept.map(({ version }) => version)).toEqual(Array.from({ length: 100 }, (_each, index) => 200 + index));
  expect(kept[0]?.id.length).toBeLessThan(300);
});
