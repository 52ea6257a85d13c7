import type { CallOperation, ForwardRequest, Outcome, Target, Usage } from './call.ts';

/** What a policy (a budget, a rate limit) learns of a call before it is made to a target. */
export type AdmissionRequest = {
  workspaceId: string;
  /** The gateway key that it came with; null: none, as of a batch line. */
  keyId: string | null;
  target: Target;
  /** What the provider is asked for. */
  model: string | null;
  operation: CallOperation;
  metadata: Readonly<Record<string, string>> | null;
  /** What the call may use, at most about; computed when it is asked for, because it reads the body. */
  estimate: () => UsageEstimate;
};

export type UsageEstimate = {
  /** By the size of the body: about four bytes a token. */
  inputTokens: number;
  /** The bound that the request sets; null: none. */
  outputTokensMax: number | null;
};

/** What came of an admitted call. */
export type Spent = {
  /** null: nothing is known to be used, or the answer says nothing of it. */
  usage: Usage | null;
  /** Calls to the provider; 0 of an answer from the cache, or of a call that was refused. */
  attempts: number;
  /** null: there was no answer. */
  status: number | null;
};

/** What a policy has set aside for a call. `settle` is called exactly once, when the call is over, of a stream at its end. */
export type Reservation = { settle: (spent: Spent) => void };

/**
 * Decides whether a call may be made to a target, before it costs anything; a promise only where there is something to
 * wait for. null: nothing is to be settled. Throws the GatewayError that refuses the call. After `rate_limited` a fallback
 * goes on to its next target, and a batch line waits for as long as the error says and is asked for again.
 */
export type Admit = (request: AdmissionRequest) => Reservation | null | Promise<Reservation | null>;

const bytesPerToken = 4;
const outputBounds = ['max_completion_tokens', 'max_tokens', 'max_output_tokens'];

/** What a request may use, at most about. */
export function estimateUsage({ body, parsed }: Pick<ForwardRequest, 'body' | 'parsed'>): UsageEstimate {
  const params = parsed ?? (body.length === 0 ? {} : (JSON.parse(body.toString()) as Record<string, unknown>));
  const bound = outputBounds.map((name) => params[name]).find((value) => typeof value === 'number');
  const choices = typeof params['n'] === 'number' ? params['n'] : 1;
  return {
    inputTokens: Math.ceil(body.length / bytesPerToken),
    outputTokensMax: bound === undefined ? null : bound * choices,
  };
}

/** Tells a reservation what its call has used: at once, or when the answer's body has ended. */
export function settleReservation({ settle }: Reservation, outcome: Outcome): void {
  const attempts = outcome.attempts.length;
  if (outcome.kind === 'failed') {
    settle({ usage: outcome.lostAnswer?.usage ?? null, attempts, status: null });
  } else if (outcome.kind === 'json') {
    settle({ usage: outcome.usage, attempts, status: outcome.status });
  } else {
    const { status } = outcome;
    void outcome.done.then(({ usage }) => settle({ usage, attempts, status }));
  }
}
