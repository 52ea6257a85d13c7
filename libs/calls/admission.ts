import { estimatedMembers, estimateTokens, type UsageEstimate } from '#libs/prices/estimate-tokens.ts';
import type { LimitRule } from '#libs/limits/limit-rule.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { toRecord } from '#libs/providers/turns/json-value.ts';
import type { Usage } from '#libs/prices/usage.ts';
import type { OtherModels } from './allowed-models.ts';
import type { Attempt, CallOperation, ForwardRequest, Outcome, Target } from './call.ts';

/** The input of a policy (a budget, a rate limit) about a call, before the call is made to a target. */
export type AdmissionRequest = {
  workspaceId: string;
  /** The API key of the client; null if there is none, as for a batch line. */
  keyId: string | null;
  target: Pick<Target, 'provider' | 'label' | 'credentialId' | 'integration' | 'models' | 'ownPrice'>;
  /** The model that is requested from the provider; null: the provider chooses it. */
  model: string | null;
  /** The name of the public model in the call. Absent: it names none. */
  publicModel?: string | undefined;
  operation: CallOperation;
  /** `none`: the call runs no model. `training`: a job whose price is not known. */
  work: 'none' | 'call' | 'training';
  metadata: Readonly<Record<string, string>> | null;
  /** The stored config and prompt that the call uses; null for none. */
  config: StoredName | null;
  prompt: StoredName | null;
  /** For a batch line that waits until a used-up budget is reset, instead of failing. */
  waitsForBudget: boolean;
  /** The cost bound of the batch that the call belongs to. Absent: there is none. */
  bound?: CallBound | null;
  /** For a batch line: runs `wait` without the line's permit, until its turn has come. Absent: the call must not wait. */
  waitForTurn?: ((wait: (signal: AbortSignal) => Promise<void>) => Promise<void>) | undefined;
  /** The most that the call is expected to use. Computed when it is read, because that reads the body. */
  estimate: () => UsageEstimate;
  /** The other models that the provider can choose instead. Reads the body. */
  otherModels: () => OtherModels;
};

/** A cost budget that only the calls of one batch draw from. They wait while it is used up. */
export type CallBound = {
  /** The budget at this moment; null: there is none any more. */
  rule: () => LimitRule | null;
  /** Called when what is left does not cover a call, and no running call can return enough. */
  onReached: () => void;
};

type StoredName = { id: string; slug: string };

/** Refuses a batch line that waits for its budget. The line treats it like a rate limit and tries again later. */
export class BudgetWaitError extends GatewayError {
  constructor(message: string, retryAfterMs: number) {
    super('rate_limited', budgetCode, message, { retryAfterMs });
  }
}

export const budgetCode = 'usage_limit_exceeded';

/** The result of an admitted call. */
export type Spent = {
  /** null: no usage is known, or the answer does not report it. */
  usage: Usage | null;
  /** The answer broke off. `usage` covers the part that had arrived. */
  isPartial?: boolean;
  /** Calls to the provider. Empty for an answer from the cache, or for a call that was refused. */
  attempts: readonly Attempt[];
  /** null: there was no answer. */
  status: number | null;
  /** The model that the answer names; null if it names none. */
  model: string | null;
  /**
   * `usage` belongs to work that was already counted when it began, and contains only the amount that the estimate
   * missed.
   */
  isLate?: boolean;
  /** The ID of the stored object that the answer contains, such as a run or a response. */
  objectId?: string | null | undefined;
};

/**
 * The reservation of a policy for a call. `settle` is called exactly once, when the call is over; for a stream, when it
 * has ended.
 */
export type Reservation = { settle: (spent: Spent) => void };

/**
 * Decides whether a call is allowed to its target, before it costs anything. Returns a promise only if it has to wait,
 * and null if nothing has to be settled. Throws the GatewayError that refuses the call. After `rate_limited`, a
 * fallback continues with its next target, and a batch line waits for the error's retry time and asks again.
 */
export type Admit = (request: AdmissionRequest) => Reservation | null | Promise<Reservation | null>;

/** Decides whether calls are allowed. */
export type Admission = {
  /** Whether any limit applies to a call. This is almost never the case, so it must cost almost nothing. */
  isLimited: (workspaceId: string, keyId: string | null, credentialId: string | undefined) => boolean;
  admit: Admit;
};

/** Returns the most that a request is expected to use, with the edits of its config. */
export function estimateUsage({
  body,
  parsed,
  edits,
  operation,
}: Pick<ForwardRequest, 'body' | 'parsed' | 'edits' | 'operation'>): UsageEstimate {
  // The body of a pass-through call can be any JSON value.
  const params = parsed ?? (body.length === 0 ? {} : toRecord(JSON.parse(body.toString())));
  if (edits === undefined) return estimateTokens(body.length, params, operation);
  const edited = { ...params };
  let editBytes = 0;
  for (const [name, raw] of Object.entries(edits)) {
    editBytes += raw?.length ?? 0;
    if (estimatedMembers.includes(name)) edited[name] = raw === undefined ? undefined : (JSON.parse(raw) as unknown);
  }
  // The messages of a prompt are an edit that contains the client's own.
  return estimateTokens(Math.max(body.length, editBytes), edited, operation);
}

/** Settles a reservation with the usage of its call: immediately, or when the body of the answer has ended. */
export function settleReservation({ settle }: Reservation, outcome: Outcome): void {
  const { attempts } = outcome;
  if (outcome.kind === 'failed') {
    const { usage = null, status = null, model = null } = outcome.lostAnswer ?? {};
    settle({ usage, attempts, status, model });
  } else if (outcome.kind === 'json') {
    const { usage, status, model, objectId } = outcome;
    settle({ usage, attempts, status, model, objectId });
  } else if (outcome.kind === 'stream') {
    const { status } = outcome;
    void outcome.done.then(({ usage, model, complete }) =>
      settle({ usage, attempts, status, model, isPartial: !complete }),
    );
  } else {
    const { status } = outcome;
    void outcome.done.then(({ usage, model, objectId }) => settle({ usage, attempts, status, model, objectId }));
  }
}

/** The end of a call whose result is not known. It may have reached its provider. */
export const unknownEnd: Spent = {
  usage: null,
  attempts: [{ startedAt: 0, durationMs: 0, status: null, errorCode: 'internal_error', isLost: true }],
  status: null,
  model: null,
};
