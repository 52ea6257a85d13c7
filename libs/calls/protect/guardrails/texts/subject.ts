import type { CallOperation } from '#libs/calls/call.ts';
import type { CallTexts } from './call-texts.ts';

/** The subject of guardrails: a call before it is made, and its whole answer after it. */
export type GuardrailSubject = {
  /**
   * The owner of the guardrails: workspaces take turns in threads, and webhooks count in their share of the
   * connections.
   */
  workspaceId: string;
  /** null: the feedback of its guardrails is not stored. */
  traceId: string | null;
  operation: CallOperation;
  /** The model that is requested from the provider. */
  model: string | null;
  /** The name of the public model in the call. Absent: it names none. */
  publicModel?: string | undefined;
  provider: string;
  metadata: Readonly<Record<string, string>> | null;
  /** The client's headers, in lower case; none for a batch line. */
  headers: Readonly<Record<string, string>>;
  stream: boolean;
  /** The body that the provider gets, with overrides and defaults applied. */
  request: Readonly<Record<string, unknown>>;
  /** null before the call. `body` is its JSON as it arrived, which can be too large to be parsed here. */
  response: { status: number; body: Buffer; texts: CallTexts } | null;
  /** The memory of both bodies and their values together, which is held while an async guardrail runs. */
  sizeBytes: number;
  signal: AbortSignal;
};
