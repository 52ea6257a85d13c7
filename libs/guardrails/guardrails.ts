import type { Guardrail, GuardrailCheck } from '#libs/contracts/guardrails.ts';
import type { Egress } from '#libs/forwarding/egress.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import { inputTexts, outputTexts, type CallTexts } from './call-texts.ts';
import { checkRequest } from './request-checks.ts';
import { createWorkBudget, type WorkBudget } from './run-within.ts';
import type { GuardrailSubject } from './subject.ts';
import { checkText, isSearch, isTextCheck, prepareTextCheck, type Finding, type TextCheck } from './text-checks.ts';
import { askWebhook, prepareWebhook, type WebhookCheck } from './webhook.ts';

type CheckResult = {
  id: string;
  verdict: boolean;
  data: Readonly<Record<string, unknown>>;
  execution_time: number;
  created_at: string;
};

/** One guardrail's result, as `hook_results` shows it (the ancestor's shape). */
export type HookResult = {
  type: 'guardrail';
  id: string;
  name?: string;
  verdict: boolean;
  deny: boolean;
  async: false;
  checks: CheckResult[];
  feedback?: object;
  execution_time: number;
  created_at: string;
};

/** `denied`: a guardrail that may refuse did; `failed`: one failed that only tells. */
export type GuardrailVerdict = { outcome: 'passed' | 'failed' | 'denied'; results: HookResult[] };

/**
 * Throws invalid_request when a guardrail could never be evaluated: a pattern that RE2 does not know, a schema out of
 * bounds, a webhook at a forbidden address. For when a config is stored, or comes with a call.
 */
export function prepareGuardrails(egress: Pick<Egress, 'check'>, guardrails: readonly Guardrail[]): void {
  for (const { checks } of guardrails) {
    for (const check of checks) {
      if (isTextCheck(check)) prepareTextCheck(check);
      else if (check.name === 'webhook') prepareWebhook(egress, check);
    }
  }
}

export type Guardrails = {
  /**
   * Evaluates the guardrails of one phase, in order, all of them (a denial does not hide what else failed). Guardrails
   * with `async` run beside the call and are only logged. Rejects when the caller leaves, and as
   * `prepareGuardrails`.
   */
  evaluate: (guardrails: readonly Guardrail[], subject: GuardrailSubject) => Promise<GuardrailVerdict>;
  /** Resolves when no `async` guardrail runs any more. */
  settled: () => Promise<void>;
};

// Longer texts are not looked at, and so do not pass: each character costs time on the loop that serves everybody.
const textCharsMax = 2_000_000;

// What `async` guardrails may hold at once; the ones beyond are skipped, and the log says so.
const asyncMax = 200;
const asyncBytesMax = 67_108_864;

/** The guardrails of configs: local checks and webhooks. */
export function createGuardrails(deps: {
  egress: Egress;
  clock: Clock;
  logger: Logger;
  /** What the webhooks of one phase of a call may take together. Default 60 s. */
  webhooksMs?: number;
}): Guardrails {
  const { egress, clock, logger, webhooksMs } = deps;
  const running = new Set<Promise<void>>();
  let runningBytes = 0;

  const evaluateCheck = async (
    check: GuardrailCheck,
    subject: GuardrailSubject,
    texts: Texts,
    budget: WorkBudget,
  ): Promise<CheckResult> => {
    const start = performance.now();
    let finding: Finding;
    if (isTextCheck(check)) finding = checkTexts(check, texts(), budget);
    else if (check.name === 'webhook') finding = await askWithin(budget, check, subject, texts());
    else finding = checkRequest(check, subject);
    return {
      id: check.id,
      ...finding,
      execution_time: elapsed(start),
      created_at: new Date(clock.now()).toISOString(),
    };
  };

  /** A webhook has its own time, and no more than is left of that of all. */
  const askWithin = async (
    budget: WorkBudget,
    check: WebhookCheck,
    subject: GuardrailSubject,
    texts: CallTexts,
  ): Promise<Finding> => {
    const start = performance.now();
    const timeout = Math.max(1, Math.ceil(Math.min(check.parameters.timeout, budget.webhooksLeftMs)));
    const timed = { ...check, parameters: { ...check.parameters, timeout } };
    try {
      return await askWebhook(egress, timed, subject, webhookTexts(subject, texts));
    } finally {
      budget.webhooksLeftMs -= performance.now() - start;
    }
  };

  const evaluateOne = async (
    guardrail: Guardrail,
    place: number,
    subject: GuardrailSubject,
    texts: Texts,
    budget: WorkBudget,
  ): Promise<HookResult> => {
    const start = performance.now();
    const results: CheckResult[] = [];
    for (const check of guardrail.checks) results.push(await evaluateCheck(check, subject, texts, budget));
    const verdict = results.every((result) => result.verdict);
    const feedback = verdict ? guardrail.onSuccess : guardrail.onFail;
    return {
      type: 'guardrail',
      id: guardrail.id ?? `${subject.response === null ? 'input' : 'output'}_guardrail_${place + 1}`,
      ...(guardrail.name === null ? {} : { name: guardrail.name }),
      verdict,
      deny: guardrail.deny,
      async: false,
      checks: results,
      ...(feedback === null ? {} : { feedback }),
      execution_time: elapsed(start),
      created_at: new Date(clock.now()).toISOString(),
    };
  };

  const runBeside = (
    guardrail: Guardrail,
    place: number,
    subject: GuardrailSubject,
    texts: Texts,
    budget: WorkBudget,
  ): void => {
    const { sizeBytes } = subject;
    if (running.size >= asyncMax || (running.size > 0 && runningBytes + sizeBytes > asyncBytesMax)) {
      logger.warn({ running: running.size, bytes: runningBytes }, 'async guardrail skipped: too many run already');
      return;
    }
    // The call may end first: its signal must not end this.
    const detached = { ...subject, signal: new AbortController().signal };
    const run = evaluateOne(guardrail, place, detached, texts, budget).then(
      ({ id, verdict }) => logger.info({ guardrail: id, verdict }, 'async guardrail evaluated'),
      (error: unknown) => logger.warn({ err: error }, 'async guardrail failed'),
    );
    running.add(run);
    runningBytes += sizeBytes;
    void run.finally(() => {
      running.delete(run);
      runningBytes -= sizeBytes;
    });
  };

  return {
    settled: async () => {
      await Promise.all(running);
    },
    async evaluate(guardrails, subject) {
      const texts = lazyTexts(subject);
      const results: HookResult[] = [];
      // Apart, so that what only tells cannot use up the time of what decides.
      const [budget, besideBudget] = [createWorkBudget(webhooksMs), createWorkBudget(webhooksMs)];
      for (const [place, guardrail] of guardrails.entries()) {
        if (guardrail.async) runBeside(guardrail, place, subject, texts, besideBudget);
        else results.push(await evaluateOne(guardrail, place, subject, texts, budget));
      }
      const failed = results.filter((result) => !result.verdict);
      if (failed.length === 0) return { outcome: 'passed', results };
      return { outcome: failed.some((result) => result.deny) ? 'denied' : 'failed', results };
    },
  };
}

type Texts = () => CallTexts;

function lazyTexts({ operation, request, response }: GuardrailSubject): Texts {
  let texts: CallTexts | undefined;
  return () => (texts ??= response === null ? inputTexts(operation, request) : outputTexts(response.body));
}

/** A check of texts on all that it reads: it passes when it passes on each of them. */
function checkTexts(check: TextCheck, { said, measured, hasUnreadable }: CallTexts, budget: WorkBudget): Finding {
  if (hasUnreadable) return { verdict: false, data: { explanation: 'The input is token ids, which cannot be read.' } };
  const texts = isSearch(check) ? said : measured;
  if (texts.some((text) => text.length > textCharsMax)) {
    return { verdict: false, data: { explanation: `The text is longer than ${textCharsMax} characters.` } };
  }
  let last: Finding = { verdict: true, data: { explanation: 'There is no text to check.' } };
  for (const text of texts) {
    last = timed(budget, () => checkText(check, text, budget));
    if (!last.verdict) return last;
  }
  return last;
}

/** Counts what a check took, also one that runs without a clock of its own: many words, many long texts. */
function timed<Result>(budget: WorkBudget, work: () => Result): Result {
  const [start, before] = [performance.now(), budget.leftMs];
  const result = work();
  budget.leftMs = Math.min(budget.leftMs, before - (performance.now() - start));
  return result;
}

function webhookTexts({ operation, request, response }: GuardrailSubject, texts: CallTexts) {
  const [text = ''] = texts.measured;
  if (response === null) return { request: text, response: '' };
  return { request: inputTexts(operation, request).measured[0] ?? '', response: text };
}

const elapsed = (start: number): number => Math.round((performance.now() - start) * 1_000) / 1_000;
