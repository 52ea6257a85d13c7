import type { GuardrailCheck } from '#libs/contracts/configs/guardrail-checks.ts';
import { isReference, type Guardrail, type GuardrailEntry } from '#libs/contracts/configs/guardrails.ts';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { AnswerTexts } from './texts/answer-texts.ts';
import type { CallTexts } from './texts/call-texts.ts';
import type { TimedFinding, TextWork } from './check-texts.ts';
import { hostsExist } from './checks/hosts-exist.ts';
import { createJwtCheck, prepareJwtCheck } from './checks/jwt-check.ts';
import { inputTexts } from './texts/request-texts.ts';
import { checkRequest } from './checks/request-checks.ts';
import type { GuardrailSubject } from './texts/subject.ts';
import { isTextCheck, prepareTextCheck, type Finding, type TextCheck } from './checks/text-checks.ts';
import type { TextChecker } from './text-checker.ts';
import { askWebhook, prepareWebhook, type WebhookCheck } from './webhook.ts';

type CheckResult = {
  id: string;
  name?: string;
  verdict: boolean;
  data: Readonly<Record<string, unknown>>;
  execution_time: number;
  created_at: string;
};

/** The result of one guardrail, as shown in `hook_results` (Portkey's format). */
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

/** `denied`: a guardrail that can deny has failed. `failed`: one that only reports has failed. */
export type GuardrailVerdict = { outcome: 'passed' | 'failed' | 'denied'; results: HookResult[] };

/**
 * Throws invalid_request when a guardrail could never be evaluated: a pattern that RE2 does not accept, a schema beyond its
 * limits, a webhook at a forbidden address. Call it when a config is stored or comes with a call. The contract of configs
 * checks the size of its patterns.
 */
export function prepareGuardrails(egress: Pick<Egress, 'check'>, guardrails: readonly GuardrailEntry[]): void {
  for (const guardrail of guardrails) {
    if (isReference(guardrail)) continue;
    for (const check of guardrail.checks) {
      if (isTextCheck(check)) prepareTextCheck(check);
      else if (check.name === 'webhook') prepareWebhook(egress, check);
      else if (check.name === 'jwt') prepareJwtCheck(egress, check);
    }
  }
}

export type Guardrails = {
  /**
   * Evaluates all guardrails of one phase, in order (a denial does not hide other failures). Guardrails with `async`
   * run in the background and are only logged. Rejects when the caller leaves, and like `prepareGuardrails`.
   */
  evaluate: (guardrails: readonly GuardrailEntry[], subject: GuardrailSubject) => Promise<GuardrailVerdict>;
  /** Reads a whole answer for the output guardrails; see `AnswerTexts`. */
  textsOf: AnswerTexts['read'];
  /** Resolves when no `async` guardrail is running. */
  settled: () => Promise<void>;
};

/** Stores the feedback that a guardrail's actions attach to the trace of its call. */
export type GuardrailFeedback = {
  traceId: string;
  value: number;
  weight: number;
  metadata: Record<string, unknown> | null;
};

// The number of `async` guardrails that can run at the same time, and the bytes that they can hold. Further ones are
// skipped, which is logged.
const asyncMax = 200;
const asyncBytesMax = 67_108_864;

// The maximum wait of a call. It blocks only the caller, and for a batch line one of the batch's permits.
const webhooksMsDefault = 60_000;

/** The state that the guardrails of one phase of a call share. */
type Phase = {
  subject: GuardrailSubject;
  texts: Texts;
  /** The results of the checks that read texts, in order; they are consumed one by one. */
  judged: TimedFinding[];
  /** The time that is left for all webhooks together. */
  webhooksLeftMs: number;
};

/** Makes the guardrails of configs: local checks and webhooks. */
export function createGuardrails(deps: {
  egress: Egress;
  clock: Clock;
  logger: Logger;
  textChecker: Pick<TextChecker, 'judge'>;
  answerTexts: Pick<AnswerTexts, 'read'>;
  /** Must not throw. Absent: feedback is only shown in results. */
  recordFeedback?: (workspaceId: string, feedback: GuardrailFeedback) => void;
  /** The maximum time that the webhooks of one phase of a call can take together. Default 60 s. */
  webhooksMs?: number;
}): Guardrails {
  const { egress, clock, logger, textChecker, answerTexts, webhooksMs = webhooksMsDefault } = deps;
  const checkJwt = createJwtCheck({ egress, clock });
  const background = createBackgroundRuns(logger);

  const evaluateCheck = async (check: GuardrailCheck, phase: Phase): Promise<CheckResult> => {
    const start = performance.now();
    let finding: Finding;
    let durationMs: number | undefined;
    if (isTextCheck(check)) {
      const judged = phase.judged.shift();
      if (judged === undefined) throw new Error('a text check was not evaluated');
      ({ durationMs, ...finding } = judged);
      if (finding.hosts !== undefined) finding = await checkHosts(egress, check, finding, finding.hosts, phase.subject);
    } else if (check.name === 'webhook') finding = await askWithin(egress, check, phase);
    else if (check.name === 'jwt') finding = await checkJwt(check, phase.subject);
    else finding = checkRequest(check, phase.subject);
    return {
      id: check.id,
      ...(check.label === null ? {} : { name: check.label }),
      verdict: finding.verdict,
      data: finding.data,
      execution_time: rounded(durationMs ?? performance.now() - start),
      created_at: new Date(clock.now()).toISOString(),
    };
  };

  const evaluateOne = async ({ guardrail, index }: Numbered, phase: Phase): Promise<HookResult> => {
    const results: CheckResult[] = [];
    for (const check of guardrail.checks) results.push(await evaluateCheck(check, phase));
    const verdict = results.every((result) => result.verdict);
    const feedback = verdict ? guardrail.onSuccess : guardrail.onFail;
    const { traceId, workspaceId } = phase.subject;
    if (feedback?.value !== undefined && traceId !== null) {
      const { value, weight = 1, metadata } = feedback;
      deps.recordFeedback?.(workspaceId, { traceId, value, weight, metadata: feedbackMetadata(metadata) });
    }
    return {
      type: 'guardrail',
      id: guardrail.id ?? `${phase.subject.response === null ? 'input' : 'output'}_guardrail_${index + 1}`,
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

  /** Evaluates all guardrails in order. All of their checks of texts run together. */
  const evaluateAll = async (
    numbered: readonly Numbered[],
    subject: GuardrailSubject,
    texts: Texts,
  ): Promise<HookResult[]> => {
    const checks = numbered.flatMap(({ guardrail }) => guardrail.checks.filter(isTextCheck));
    let judged: TimedFinding[] = [];
    if (checks.length > 0) {
      const work: TextWork = { checks, texts: texts() };
      judged = await textChecker.judge(work, subject);
    }
    const phase: Phase = { subject, texts, judged: [...judged], webhooksLeftMs: webhooksMs };
    const results: HookResult[] = [];
    for (const one of numbered) results.push(await evaluateOne(one, phase));
    return results;
  };

  return {
    textsOf: answerTexts.read,
    settled: background.settled,
    async evaluate(guardrails, subject) {
      const texts = lazyTexts(subject);
      const numbered = guardrails.map((entry, index) => ({ guardrail: resolved(entry), index }));
      // Evaluated separately, so that guardrails that only report cannot use up the time of those that decide.
      for (const one of numbered) {
        if (!one.guardrail.async) continue;
        // The call can end first. Its signal must not end the guardrail.
        const detached = { ...subject, signal: new AbortController().signal };
        background.run(subject.sizeBytes, () => evaluateAll([one], detached, texts));
      }
      const deciding = numbered.filter(({ guardrail }) => !guardrail.async);
      const results = await evaluateAll(deciding, subject, texts);
      const failed = results.filter((result) => !result.verdict);
      if (failed.length === 0) return { outcome: 'passed', results };
      return { outcome: failed.some((result) => result.deny) ? 'denied' : 'failed', results };
    },
  };
}

async function checkHosts(
  egress: Egress,
  { parameters }: TextCheck,
  { data }: Finding,
  hosts: readonly (readonly string[])[],
  subject: GuardrailSubject,
): Promise<Finding> {
  const not = 'not' in parameters && parameters.not;
  const found = await hostsExist(egress, hosts, subject);
  return { verdict: found.every((areThere) => areThere !== not), data: { ...data, resolved: found.every(Boolean) } };
}

/** A webhook has its own time limit, and never more than the rest of the common one. */
async function askWithin(egress: Egress, check: WebhookCheck, phase: Phase): Promise<Finding> {
  const start = performance.now();
  const timeout = Math.max(1, Math.ceil(Math.min(check.parameters.timeout, phase.webhooksLeftMs)));
  const timed = { ...check, parameters: { ...check.parameters, timeout } };
  const { subject, texts } = phase;
  try {
    return await askWebhook(egress, timed, subject, webhookTexts(subject, texts()));
  } finally {
    phase.webhooksLeftMs -= performance.now() - start;
  }
}

/** Runs `async` guardrails within the limits for their number and memory. */
function createBackgroundRuns(logger: Logger) {
  const running = new Set<Promise<void>>();
  let runningBytes = 0;
  return {
    /** `sizeBytes`: the memory that the evaluation holds. */
    run(sizeBytes: number, evaluate: () => Promise<HookResult[]>): void {
      if (running.size >= asyncMax || (running.size > 0 && runningBytes + sizeBytes > asyncBytesMax)) {
        logger.warn(
          { running: running.size, bytes: runningBytes },
          'async guardrail skipped because too many are running',
        );
        return;
      }
      const run = evaluate().then(
        ([result]) => logger.info({ guardrail: result?.id, verdict: result?.verdict }, 'async guardrail evaluated'),
        (error: unknown) => logger.warn({ err: error }, 'async guardrail failed'),
      );
      running.add(run);
      runningBytes += sizeBytes;
      void run.finally(() => {
        running.delete(run);
        runningBytes -= sizeBytes;
      });
    },
    settled: async (): Promise<void> => {
      await Promise.all(running);
    },
  };
}

/**
 * References are replaced when the plan is looked up. A remaining reference is a bug: its guardrail must not be
 * skipped.
 */
function resolved(entry: GuardrailEntry): Guardrail {
  if (isReference(entry)) throw new Error(`the guardrail '${entry.stored}' was not resolved`);
  return entry;
}

/** Portkey's clients send JSON text. Any other text is stored under one name. */
function feedbackMetadata(given: Record<string, string> | string | undefined): Record<string, unknown> | null {
  if (typeof given !== 'string') return given ?? null;
  try {
    const value: unknown = JSON.parse(given);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return { ...value };
  } catch {
    // The text is not JSON.
  }
  return { text: given };
}

type Numbered = { guardrail: Guardrail; index: number };
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
