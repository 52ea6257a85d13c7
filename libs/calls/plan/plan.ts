import type { BreakerPolicy } from '#libs/contracts/circuit-breaker.ts';
import type { Guardrail } from '#libs/contracts/guardrails.ts';
import type { PathStep } from '#libs/contracts/param-path.ts';
import type { CachePolicy } from '#libs/contracts/response-cache.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import type { Secret } from '#libs/kernel/secret.ts';

/** What conditions and sticky hashes look at: the caller's own words, before any config changes them. */
export type PlanCall = {
  params: Readonly<Record<string, unknown>>;
  metadata: Readonly<Record<string, string>> | null;
  /** `/v1/chat/completions`. */
  pathname: string;
};

/** What a target says about where its calls go; whatever it leaves out is the caller's. */
export type LeafCredentials = {
  /** Slug of a virtual key. */
  virtualKey: string | null;
  provider: string | null;
  apiKey: Secret | null;
  /** Nearest definition. */
  customHost: string | null;
  settings: Readonly<Record<string, string>>;
  secrets: Readonly<Record<string, Secret>>;
};

export type LeafRetry = {
  /** Calls after the first. */
  attempts: number;
  statuses: readonly number[] | null;
  obeysRetryAfter: boolean;
  jitter: boolean;
};

/** One target that calls are made to, with everything that it inherited. Frozen: shared by all calls of a config. */
export type Leaf = {
  /** Its place, as `x-gateway-last-used-option-index` tells it: `config.targets[0].targets[1]`; `config` alone: the root. */
  path: string;
  name: string | null;
  credentials: LeafCredentials;
  /** Raw JSON by the names of top-level parameters. */
  defaults: ReadonlyMap<string, string>;
  overrides: ReadonlyMap<string, string>;
  drops: readonly (readonly PathStep[])[];
  retry: LeafRetry | null;
  timeouts: Readonly<Partial<Timeouts>> | null;
  cache: CachePolicy | null;
  inputGuardrails: readonly Guardrail[];
  outputGuardrails: readonly Guardrail[];
  /** Streams are asked for whole, so that output guardrails judge them before their first word. */
  answersWhole: boolean;
  breaker: BreakerPolicy | null;
  /** Lower case. */
  forwardHeaders: readonly string[];
  strict: boolean;
  unsupportedParams: 'drop' | 'refuse';
};

/** Whether an expression is found in a text. */
export type PatternSearch = (rule: string, text: string) => boolean | Promise<boolean>;

/** A promise only where `search` gives one. */
export type Predicate = (call: PlanCall, search: PatternSearch) => boolean | Promise<boolean>;

export type PlanNode =
  | { kind: 'leaf'; leaf: Leaf }
  /** `statuses` null: anything but 2xx leads on to the next. */
  | { kind: 'fallback'; options: readonly PlanNode[]; statuses: ReadonlySet<number> | null }
  | { kind: 'loadbalance'; options: readonly WeightedOption[]; sticky: Sticky | null }
  | { kind: 'conditional'; conditions: readonly { matches: Predicate; node: PlanNode }[]; otherwise: PlanNode };

/** `key` is what a sticky caller is hashed against: a name survives targets being added and removed, a place does not. */
export type WeightedOption = { weight: number; key: string; node: PlanNode };

export type Sticky = { fields: readonly ((call: PlanCall) => unknown)[]; ttlMs: number | null };

/** A config made ready to run. */
export type Plan = {
  root: PlanNode;
  /** In the order of the config. */
  leaves: readonly [Leaf, ...Leaf[]];
};
