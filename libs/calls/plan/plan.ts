import type { BreakerPolicy } from '#libs/contracts/configs/circuit-breaker.ts';
import type { GuardrailEntry } from '#libs/contracts/configs/guardrails.ts';
import type { PathStep } from '#libs/contracts/param-path.ts';
import type { AgentSession } from '#libs/contracts/calls/agent-session.ts';
import type { CachePolicy } from '#libs/contracts/calls/response-cache.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { OwnPrice } from '#libs/prices/price-table.ts';

/** The input of conditions and sticky hashes: the caller's own values, before any config changes them. */
export type PlanCall = {
  params: Readonly<Record<string, unknown>>;
  metadata: Readonly<Record<string, string>> | null;
  /** For example `/v1/chat/completions`. */
  pathname: string;
  /** null: its client names none. Absent for a batch line, which is part of no conversation. */
  session?: AgentSession | null;
};

/** The settings of a target that determine where its calls go. The caller decides whatever it leaves out. */
export type LeafCredentials = {
  /** The slug of a virtual key. */
  virtualKey: string | null;
  provider: string | null;
  apiKey: Secret | null;
  /** The nearest definition applies. */
  customHost: string | null;
  settings: Readonly<Record<string, string>>;
  secrets: Readonly<Record<string, Secret>>;
};

export type LeafRetry = {
  /** The maximum of calls after the first. */
  attempts: number;
  statuses: readonly number[] | null;
  obeysRetryAfter: boolean;
  jitter: boolean;
};

/** One target of a config, with everything that it inherited. Frozen, because all calls of the config share it. */
export type Leaf = {
  /** Its path, as in `x-gateway-last-used-option-index`: `config.targets[0].targets[1]`, or `config` for the root. */
  path: string;
  name: string | null;
  credentials: LeafCredentials;
  /** Raw JSON by the names of top-level parameters. */
  defaults: ReadonlyMap<string, string>;
  overrides: ReadonlyMap<string, string>;
  drops: readonly (readonly PathStep[])[];
  /**
   * A stored prompt that its requests are rendered from, by `slug`, `slug@version` or ID, with variables that calls can
   * replace.
   */
  prompt: { name: string; variables: Readonly<Record<string, unknown>> } | null;
  retry: LeafRetry | null;
  timeouts: Readonly<Partial<Timeouts>> | null;
  cache: CachePolicy | null;
  inputGuardrails: readonly GuardrailEntry[];
  outputGuardrails: readonly GuardrailEntry[];
  breaker: BreakerPolicy | null;
  /** In lower case. */
  forwardHeaders: readonly string[];
  strict: boolean;
  unsupportedParams: 'drop' | 'refuse';
  cacheBreakpoints: boolean;
  /** null: it is a target of a config or of a plain call. */
  publicModel: PublicModelUse | null;
};

/** The public model through which a target is called: its name in the call, and its price if it has one. */
export type PublicModelUse = { readonly name: string; readonly price: OwnPrice | null };

/** Whether an expression matches in a text. */
export type PatternSearch = (rule: string, text: string) => boolean | Promise<boolean>;

/** Returns a promise only if `search` does. */
export type Predicate = (call: PlanCall, search: PatternSearch) => boolean | Promise<boolean>;

export type PlanNode =
  | { kind: 'leaf'; leaf: Leaf }
  /**
   * If `statuses` is null, anything but 2xx continues with the next option. `continuesStreams`: also a stream that broke off
   * in its text.
   */
  | {
      kind: 'fallback';
      options: readonly PlanNode[];
      statuses: ReadonlySet<number> | null;
      continuesStreams: boolean;
    }
  | { kind: 'loadbalance'; options: readonly WeightedOption[]; sticky: Sticky | null }
  | { kind: 'conditional'; conditions: readonly { matches: Predicate; node: PlanNode }[]; otherwise: PlanNode };

/**
 * `key` is what a sticky caller is hashed against. A name stays the same when targets are added or removed; an index
 * does not.
 */
export type WeightedOption = { weight: number; key: string; node: PlanNode };

/** The values that identify a caller or a conversation, and how long it keeps its target (null: forever). */
export type Sticky = { fields: readonly ((call: PlanCall) => unknown)[]; ttlMs: number | null };

/** A compiled config. */
export type Plan = {
  root: PlanNode;
  /** In the order of the config. */
  leaves: readonly [Leaf, ...Leaf[]];
  /** Whether it refers to stored guardrails, which must be replaced before it runs. */
  namesGuardrails: boolean;
};
