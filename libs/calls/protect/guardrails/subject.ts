import type { CallOperation } from '#libs/calls/call.ts';
import type { CallTexts } from './call-texts.ts';

/** What guardrails look at: a call before it is made, and its whole answer after it. */
export type GuardrailSubject = {
  /** Whose guardrails they are: workspaces take turns in threads, and webhooks take their share of the connections. */
  workspaceId: string;
  operation: CallOperation;
  /** What the provider is asked for. */
  model: string | null;
  provider: string;
  metadata: Readonly<Record<string, string>> | null;
  stream: boolean;
  /** The body that the provider gets: overrides and defaults applied. */
  request: Readonly<Record<string, unknown>>;
  /** null before the call. `body` is its JSON as it came, which may be too large to be parsed here. */
  response: { status: number; body: Buffer; texts: CallTexts } | null;
  /** Of both bodies and their values together: what is held while a guardrail that runs beside the call looks at them. */
  sizeBytes: number;
  signal: AbortSignal;
};
