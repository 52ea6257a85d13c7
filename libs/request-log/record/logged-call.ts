import type { Attempt, CallOperation, StreamSummary } from '#libs/calls/call.ts';
import type { Call } from '#libs/calls/planned-call.ts';
import type { Units } from '#libs/prices/usage.ts';
import type { RequestLogEntry } from '../row/log-entry.ts';

/** How a call ended. `attempts` are those of its last target. */
export type CallEnd = Partial<Pick<StreamSummary, 'usage' | 'isEstimate' | 'finishReason'>> & {
  units?: Units | null;
  /** null: there was no answer. */
  status: number | null;
  errorCode: string | null;
  attempts: readonly Attempt[];
  responseModel?: string | null;
  providerRequestId?: string | null;
  firstEventMs?: number;
  /** `HIT`, `MISS` or `REFRESH` of a call that may be answered from the cache. */
  cacheStatus?: string | undefined;
  /** How long the answer took to come after its last attempt had begun it, in milliseconds. */
  streamedMs?: number;
};

/** Where a call went, as far as it came. A call that never had a plan has a target and a model of its own. */
export type CallPlace = Pick<
  Call,
  'workspaceId' | 'keyId' | 'metadata' | 'pathname' | 'target' | 'model' | 'earlierAttempts'
> &
  Partial<Pick<Call, 'fallbacks' | 'retries' | 'config' | 'prompt' | 'guardrailRuns'>> & {
    plan?: Call['plan'];
    request?: { body: Buffer };
  };

export type LoggedCall = {
  kind: RequestLogEntry['kind'];
  operation: CallOperation;
  method: string;
  /** Of a call that was made elsewhere: where it went. */
  url?: string;
  requestId: string;
  userId: string | null;
  trace: {
    traceId: string | null;
    spanId: string | null;
    parentSpanId: string | null;
    spanName: string | null;
    isSampled?: boolean | null;
  };
  call: CallPlace;
  stream: boolean;
  /** The target of its config that answered; null without a config. */
  option: string | null;
  /** Of a batch line. */
  batch: { id: string; line: number } | null;
  startedAtMs: number;
  durationMs: number;
  end: CallEnd;
};
