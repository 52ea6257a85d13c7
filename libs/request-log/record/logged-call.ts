import type { Attempt, CallOperation, StreamSummary } from '#libs/calls/call.ts';
import type { Call } from '#libs/calls/planned-call.ts';
import type { Units } from '#libs/prices/usage.ts';
import type { EndedCall } from '../columns.ts';

/** How a call ended. `attempts` are those of its last target. */
export type CallEnd = Omit<EndedCall['end'], 'attempts'> &
  Partial<Pick<StreamSummary, 'isEstimate'>> & { units?: Units | null; attempts: readonly Attempt[] };

/** The part of a call that describes where it went. A call that never had a plan has its own target and model. */
export type LoggedTarget = Pick<
  Call,
  'workspaceId' | 'keyId' | 'metadata' | 'pathname' | 'target' | 'model' | 'earlierAttempts'
> &
  Partial<Pick<Call, 'fallbacks' | 'retries' | 'config' | 'prompt' | 'session' | 'guardrailRuns' | 'leaf'>> & {
    plan?: Call['plan'];
    request?: { body: Buffer };
  };

export type LoggedCall = Omit<EndedCall, 'operation' | 'call' | 'end'> & {
  operation: CallOperation;
  trace: { isSampled?: boolean | null };
  call: LoggedTarget;
  end: CallEnd;
};
