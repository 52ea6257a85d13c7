import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { createAnswerThreads } from '#libs/calls/upstream/answers/answer-threads.ts';
import { createCalls } from '#libs/calls/calls.ts';
import { createAnswerTexts } from '#libs/calls/protect/guardrails/texts/answer-texts.ts';
import { recordFeedback } from '#libs/analytics/feedback.ts';
import { createGuardrails, type GuardrailFeedback } from '#libs/calls/protect/guardrails/guardrails.ts';
import { createTextChecker } from '#libs/calls/protect/guardrails/text-checker.ts';
import { steadyClock, systemClock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createObjectOwners } from '#libs/calls/protect/stored-objects/object-owners.ts';
import { createStoredObjects } from '#libs/calls/protect/stored-objects/stored-objects.ts';
import { createResponseCache } from '#libs/calls/protect/response-cache/response-cache.ts';
import { createStoredAnswers } from '#libs/calls/protect/response-cache/stored-answers.ts';
import type { Platform, PlatformConfig } from './platform.ts';

// Each takes at most a quarter of a second, so the last one starts after some seconds.
const checksWaitingMax = { ofGroup: 32, ofAll: 512 };

/** Composes the path of calls to providers: guardrails, cache, stored objects, and everything around an attempt. */
export function composeCalls(
  config: PlatformConfig,
  {
    role,
    db,
    databaseClock,
    egress,
    traffic,
    memory,
    access,
    admission,
  }: Pick<Platform, 'db' | 'databaseClock' | 'egress' | 'traffic' | 'memory' | 'access' | 'admission'> & {
    role: 'sender' | 'worker';
  },
  logger: Logger,
) {
  const answerThreads = createAnswerThreads({
    threads: config.SLUICE_CHECK_THREADS,
    leaseBytesMax: memory.leaseBytesMax,
  });
  const textChecker = createTextChecker({
    threads: config.SLUICE_CHECK_THREADS,
    // Without a limit in a worker: the number of its calls is bounded, and lines should wait rather than fail.
    ...(role === 'sender' ? { waitingMax: checksWaitingMax } : {}),
  });
  const answerTexts = createAnswerTexts({ threads: config.SLUICE_CHECK_THREADS });
  const guardrails = createGuardrails({
    egress,
    clock: systemClock,
    logger,
    textChecker,
    answerTexts,
    recordFeedback: feedbackWriter(db, logger),
  });
  const responseCache = createResponseCache({
    stored: createStoredAnswers(db),
    clock: databaseClock,
    logger,
    memoryBytesMax: config.SLUICE_CACHE_MEMORY,
  });
  const storedObjects = createStoredObjects({ owners: createObjectOwners(db), logger });
  const calls = createCalls({
    egress,
    admission,
    traffic,
    guardrails,
    responseCache,
    storedObjects,
    search: textChecker.search,
    renderPrompt: (query, pins) => access.prompts.render(query, pins),
    threads: answerThreads,
    clock: systemClock,
    steadyClock,
    random: Math.random,
    limits: { jsonBytesMax: config.SLUICE_RESPONSE_MAX },
    timeouts: {
      connectMs: config.SLUICE_CONNECT_TIMEOUT,
      headersMs: config.SLUICE_HEADERS_TIMEOUT,
      idleMs: config.SLUICE_IDLE_TIMEOUT,
      totalMs: config.SLUICE_TOTAL_TIMEOUT,
    },
    logger,
  });
  return {
    calls,
    storedObjects,
    search: textChecker.search,
    responseCache,
    threads: [
      { name: 'guardrail threads', stop: () => textChecker.stop() },
      { name: 'guarded answer threads', stop: () => answerTexts.stop() },
      { name: 'answer threads', stop: () => answerThreads.stop() },
    ],
  };
}

/**
 * Feedback of guardrails is written concurrently with their calls, up to this many at a time. Any further feedback is
 * dropped, which is logged.
 */
const feedbackWritesMax = 20;

function feedbackWriter(db: Kysely<Database>, logger: Logger) {
  let running = 0;
  return (workspaceId: string, feedback: GuardrailFeedback): void => {
    if (running >= feedbackWritesMax)
      return logger.warn({ running }, 'guardrail feedback was dropped because too much arrived at the same time');
    running += 1;
    recordFeedback(db, workspaceId, [feedback], { source: 'guardrail', keyId: null })
      .catch((error: unknown) => logger.warn({ err: error }, 'guardrail feedback cannot be stored'))
      .finally(() => {
        running -= 1;
      });
  };
}
