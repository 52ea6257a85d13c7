import type { Attempt, GuardrailRun } from '#libs/calls/call.ts';
import type { CallStep } from '#libs/contracts/logs/logs.ts';
import { toStorableText } from '#libs/kernel/storable-text.ts';
import type { CallVerdict } from '../columns.ts';
import { logTextMax } from '../row/log-entry.ts';

/** A batch line can have hundreds of attempts. The first and the last ones show what happened. */
const keptAtEachEnd = 12;

/**
 * A call that waited longer than this before its first attempt has its steps recorded, in milliseconds. Many
 * lines of a batch begin late in a busy worker, and it does not matter.
 */
const noticedWaitMs = { live: 20, imported: 20, batch: 1_000 };

/**
 * Returns the steps of a call, in order, or null if they add nothing to the row: one attempt, made immediately and answered,
 * without guardrails. If there are very many steps, only the first and the last ones are included.
 */
export function selectSteps(
  startedAtMs: number,
  attempts: readonly Attempt[],
  runs: readonly GuardrailRun[] | undefined,
  kind: keyof typeof noticedWaitMs = 'live',
): CallStep[] | null {
  const [only] = attempts;
  if (runs === undefined) {
    if (only === undefined) return null;
    const isPlain = attempts.length === 1 && only.status !== null && only.status < 400;
    if (isPlain && only.startedAt - startedAtMs < noticedWaitMs[kind]) return null;
  }
  const steps: CallStep[] = [];
  const keep = (index: number): boolean => index < keptAtEachEnd || index >= attempts.length - keptAtEachEnd;
  attempts.forEach((attempt, index) => {
    if (keep(index)) steps.push(stepOfAttempt(startedAtMs, attempt));
  });
  for (const { kind, startedAt, durationMs, outcome } of runs?.slice(-2 * keptAtEachEnd) ?? []) {
    steps.push({ kind, at_ms: Math.max(0, startedAt - startedAtMs), duration_ms: rounded(durationMs), outcome });
  }
  return steps.toSorted((one, other) => one.at_ms - other.at_ms || order[one.kind] - order[other.kind]);
}

/** Several targets, each with the guardrails of its config, workspace and key, can have hundreds of results. */
const verdictsMax = 100;

/** Returns the result of each guardrail, in order: the last ones, if there are very many. null: none was evaluated. */
export function listVerdicts(runs: readonly GuardrailRun[] | undefined): CallVerdict[] | null {
  if (runs === undefined) return null;
  const all = runs.flatMap(({ kind, verdicts }) =>
    verdicts.map(({ id, ...verdict }) => ({ kind, id: bounded(id), ...verdict })),
  );
  return all.slice(-verdictsMax);
}

const order = { input_guardrails: 0, attempt: 1, output_guardrails: 2 };

function stepOfAttempt(startedAtMs: number, { startedAt, durationMs, status, errorCode, to }: Attempt): CallStep {
  const step: CallStep = {
    kind: 'attempt',
    at_ms: Math.max(0, startedAt - startedAtMs),
    duration_ms: rounded(durationMs),
    status,
  };
  if (errorCode !== null) step.error_code = bounded(errorCode);
  if (to === undefined) return step;
  step.provider = to.target.provider;
  step.target = bounded(to.target.label);
  if (to.model !== null) step.model = bounded(to.model);
  return step;
}

const rounded = (ms: number): number => Math.round(ms * 100) / 100;

/** Codes come from providers, and models from callers. */
const bounded = (text: string): string => toStorableText(text.slice(0, logTextMax));
