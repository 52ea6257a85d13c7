import type { Guardrail, GuardrailCheck } from '#libs/contracts/guardrails.ts';
import type { Egress } from '#libs/calls/upstream/egress.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logger.ts';
import type { AnswerTexts } from './answer-texts.ts';
import { inputTexts, type CallTexts } from './call-texts.ts';
import type { Judged, TextWork } from './judge-texts.ts';
import { checkRequest } from './request-checks.ts';
import type { GuardrailSubject } from './subject.ts';
import { isTextCheck, prepareTextCheck, type Finding } from './text-checks.ts';
import type { TextJudge } from './text-judge.ts';
import { askWebhook, prepareWebhook, type WebhookCheck } from './webhook.ts';

type CheckResult = {
  id: string;
  verdict: boolean;
  data: Readonly<Record<string, unknown>>;
  execution_time: number;
  created_at: string;
};

/** One guardrail's result, as `hook_results` shows it (Portkey's shape). */
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
 * bounds, a webhook at a forbidden address. For when a config is stored, or comes with a call; how large its patterns
 * may be, the contract of configs has said.
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
  /** What a whole answer says, for the guardrails of the output; see `AnswerTexts`. */
  textsOf: AnswerTexts['read'];
  /** Resolves when no `async` guardrail runs any more. */
  settled: () => Promise<void>;
};

// What `async` guardrails may hold at once; the ones beyond are skipped, and the log says so.
const asyncMax = 200;
const asyncBytesMax = 67_108_864;

// For waiting, which holds up nobody but the caller; and a batch's place among the lines under way.
const webhooksMsDefault = 60_000;

/** One phase of a call, as its guardrails are evaluated: what they share. */
type Phase = {
  subject: GuardrailSubject;
  texts: Texts;
  /** Of the checks that read texts, in order; taken one by one. */
  judged: Judged[];
  /** What webhooks may still take together. */
  webhooksLeftMs: number;
};

/** The guardrails of configs: local checks and webhooks. */
export function createGuardrails(deps: {
  egress: Egress;
  clock: Clock;
  logger: Logger;
  textJudge: Pick<TextJudge, 'judge'>;
  answerTexts: Pick<AnswerTexts, 'read'>;
  /** What the webhooks of one phase of a call may take together. Default 60 s. */
  webhooksMs?: number;
}): Guardrails {
  const { egress, clock, logger, textJudge, answerTexts, webhooksMs = webhooksMsDefault } = deps;
  const running = new Set<Promise<void>>();
  let runningBytes = 0;

  const evaluateCheck = async (check: GuardrailCheck, phase: Phase): Promise<CheckResult> => {
    const start = performance.now();
    let finding: Finding;
    let durationMs: number | undefined;
    if (isTextCheck(check)) {
      const judged = phase.judged.shift();
      if (judged === undefined) throw new Error('a check of texts was not judged');
      ({ durationMs, ...finding } = judged);
    } else if (check.name === 'webhook') finding = await askWithin(check, phase);
    else finding = checkRequest(check, phase.subject);
    return {
      id: check.id,
      ...finding,
      execution_time: rounded(durationMs ?? performance.now() - start),
      created_at: new Date(clock.now()).toISOString(),
    };
  };

  /** A webhook has its own time, and no more than is left of that of all. */
  const askWithin = async (check: WebhookCheck, phase: Phase): Promise<Finding> => {
    const start = performance.now();
    const timeout = Math.max(1, Math.ceil(Math.min(check.parameters.timeout, phase.webhooksLeftMs)));
    const timed = { ...check, parameters: { ...check.parameters, timeout } };
    const { subject, texts } = phase;
    try {
      return await askWebhook(egress, timed, subject, webhookTexts(subject, texts()));
    } finally {
      phase.webhooksLeftMs -= performance.now() - start;
    }
  };

  const evaluateOne = async ({ guardrail, place }: Placed, phase: Phase): Promise<HookResult> => {
    const results: CheckResult[] = [];
    for (const check of guardrail.checks) results.push(await evaluateCheck(check, phase));
    const verdict = results.every((result) => result.verdict);
    const feedback = verdict ? guardrail.onSuccess : guardrail.onFail;
    return {
      type: 'guardrail',
      id: guardrail.id ?? `${phase.subject.response === null ? 'input' : 'output'}_guardrail_${place + 1}`,
      ...(guardrail.name === null ? {} : { name: guardrail.name }),
      verdict,
      deny: guardrail.deny,
      async: false,
      checks: results,
      ...(feedback === null ? {} : { feedback }),
      execution_time: rounded(results.reduce((sum, result) => sum + result.execution_time, 0)),
      created_at: new Date(clock.now()).toISOString(),
    };
  };

  /** Evaluates guardrails in order, all of them; their checks of texts together, in one go. */
  const evaluateAll = async (
    placed: readonly Placed[],
    subject: GuardrailSubject,
    texts: Texts,
  ): Promise<HookResult[]> => {
    const checks = placed.flatMap(({ guardrail }) => guardrail.checks.filter(isTextCheck));
    let judged: Judged[] = [];
    if (checks.length > 0) {
      const work: TextWork = { checks, texts: texts() };
      const judging = textJudge.judge(work, subject);
      judged = judging instanceof Promise ? await judging : judging;
    }
    const phase: Phase = { subject, texts, judged: [...judged], webhooksLeftMs: webhooksMs };
    const results: HookResult[] = [];
    for (const one of placed) results.push(await evaluateOne(one, phase));
    return results;
  };

  const runBeside = (placed: Placed, subject: GuardrailSubject, texts: Texts): void => {
    const { sizeBytes } = subject;
    if (running.size >= asyncMax || (running.size > 0 && runningBytes + sizeBytes > asyncBytesMax)) {
      logger.warn({ running: running.size, bytes: runningBytes }, 'async guardrail skipped: too many run already');
      return;
    }
    // The call may end first: its signal must not end this.
    const detached = { ...subject, signal: new AbortController().signal };
    const run = evaluateAll([placed], detached, texts).then(
      ([result]) => logger.info({ guardrail: result?.id, verdict: result?.verdict }, 'async guardrail evaluated'),
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
    textsOf: answerTexts.read,
    settled: async () => {
      await Promise.all(running);
    },
    async evaluate(guardrails, subject) {
      const texts = lazyTexts(subject);
      const placed = guardrails.map((guardrail, place) => ({ guardrail, place }));
      // Apart, so that what only tells cannot use up the time of what decides.
      for (const one of placed) if (one.guardrail.async) runBeside(one, subject, texts);
      const deciding = placed.filter(({ guardrail }) => !guardrail.async);
      const results = await evaluateAll(deciding, subject, texts);
      const failed = results.filter((result) => !result.verdict);
      if (failed.length === 0) return { outcome: 'passed', results };
      return { outcome: failed.some((result) => result.deny) ? 'denied' : 'failed', results };
    },
  };
}

type Placed = { guardrail: Guardrail; place: number };
type Texts = () => CallTexts;

function lazyTexts({ operation, request, response }: GuardrailSubject): Texts {
  let texts: CallTexts | undefined;
  return () => (texts ??= response === null ? inputTexts(operation, request) : response.texts);
}

function webhookTexts({ operation, request, response }: GuardrailSubject, texts: CallTexts) {
  const [text = ''] = texts.measured;
  if (response === null) return { request: text, response: '' };
  return { request: inputTexts(operation, request).measured[0] ?? '', response: text };
}

const rounded = (ms: number): number => Math.round(ms * 1_000) / 1_000;
