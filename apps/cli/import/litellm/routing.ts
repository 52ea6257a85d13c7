import { cacheMaxAgeSeconds } from '#libs/contracts/calls/response-cache.ts';
import { cacheAdvice, callbackAdvice, moduleAdvice, routerAdvice, type Advice } from './known-fields.ts';
import { overBudget, readDollars, readProviderBudgets, readReset, type Limits } from './limits.ts';
import { lookUp, type SourceNode } from './source-node.ts';
import {
  attemptsMax,
  readAttempts,
  readDropParams,
  readParams,
  readStreamTimeout,
  readTimeout,
  type Members,
} from './target-members.ts';

/** A list of fallbacks with the node that has it. */
export type FallbackList = { node: SourceNode; names: string[] };

/** What applies to all models of the file. */
export type Routing = {
  /** `retry`, `request_timeout` and `cache` of every model. */
  members: Members;
  /** Members of every target. */
  targetMembers: Members;
  breaker: Members | null;
  /** By the name of the model. */
  fallbacks: Map<string, FallbackList[]>;
  /** For failures of a request itself: it is too long, or violates a policy. */
  requestFallbacks: Map<string, FallbackList[]>;
  defaultFallbacks: FallbackList[];
  fallbacksMax: number;
  aliases: { node: SourceNode; name: string; model: string }[];
};

const defaultFallbacksMax = 5;
/** A breaker's bounds, as in libs/contracts/configs/circuit-breaker.ts. */
const cooldownMs = { min: 30_000, max: 3_600_000 };
const failuresMax = 10_000;

/** Reads `router_settings` and `litellm_settings`. Where both have a field, the router's counts, as in LiteLLM. */
export function readRouting(router: SourceNode, module: SourceNode, limits: Limits): Routing {
  const either = (name: string): SourceNode => {
    const [first, second] = [router.member(name), module.member(name)];
    if (first.isGiven) second.same('router_settings has it too, which counts.');
    return first.isGiven ? first : second;
  };
  const routing: Routing = {
    members: {},
    targetMembers: {},
    breaker: readBreaker(either),
    fallbacks: new Map(),
    requestFallbacks: new Map(),
    defaultFallbacks: [],
    fallbacksMax: readFallbacksMax(router.member('max_fallbacks')),
    aliases: [...readAliases(router.member('model_group_alias')), ...readAliases(module.member('model_alias_map'))],
  };
  readRetries(router, either, routing.members);
  readTimeouts(router, module, routing.members);
  readStrategy(router.member('routing_strategy'));
  for (const list of readFallbacks(either('fallbacks'))) addFallback(routing.fallbacks, list);
  for (const name of ['context_window_fallbacks', 'content_policy_fallbacks'])
    for (const list of readFallbacks(either(name))) addFallback(routing.requestFallbacks, list);
  const defaults = either('default_fallbacks');
  const names = defaults.isGiven ? defaults.texts() : null;
  if (names !== null) routing.defaultFallbacks.push({ node: defaults, names });
  const drop = module.member('drop_params');
  if (drop.isGiven) readDropParams(drop, routing.targetMembers);
  const params = readParams(router.member('default_litellm_params'));
  if (params !== null) routing.targetMembers['default_params'] = params;
  readCache(module, routing.members);
  readBudgets(module, limits);
  readProviderBudgets(router.member('provider_budget_config'), limits);
  readCallbacks(module);
  advise(router, routerAdvice);
  advise(module, moduleAdvice);
  return routing;
}

/** Reports the members of a section that have no counterpart. */
export function advise(section: SourceNode, advices: Readonly<Record<string, Advice>>): void {
  for (const node of section.members()) {
    const advice = lookUp(advices, node.name);
    if (advice === undefined) continue;
    const [outcome, text] = advice;
    node[outcome](text);
  }
}

type Either = (name: string) => SourceNode;

function readBreaker(either: Either): Members | null {
  const [fails, cooldown, off] = [either('allowed_fails'), either('cooldown_time'), either('disable_cooldowns')];
  const isOff = off.isGiven && off.flag() === true;
  off.same();
  if (isOff) {
    for (const node of [fails, cooldown]) node.same('disable_cooldowns is set.');
    return null;
  }
  const allowed = fails.isGiven ? fails.number() : null;
  const seconds = cooldown.isGiven ? cooldown.number() : null;
  if (allowed === null && seconds === null) return null;
  const breaker: Members = {};
  if (allowed !== null) {
    breaker['failure_threshold'] = Math.min(Math.round(allowed) + 1, failuresMax);
    fails.changed(`A circuit opens after ${String(breaker['failure_threshold'])} failures in a row, in any time.`);
  }
  if (seconds !== null) {
    const ms = Math.min(Math.max(Math.round(seconds * 1_000), cooldownMs.min), cooldownMs.max);
    breaker['cooldown_interval'] = ms;
    cooldown.translated(ms === seconds * 1_000 ? null : `${ms / 1_000} s: the range is 30 s to 1 h.`);
  }
  return breaker;
}

function readFallbacksMax(node: SourceNode): number {
  const count = node.isGiven ? node.number() : null;
  if (count !== null) node.same();
  return count ?? defaultFallbacksMax;
}

/** The statuses of LiteLLM's kinds of errors (docs.litellm.ai/docs/exception_mapping). */
const errorStatuses: Readonly<Record<string, readonly number[]>> = {
  BadRequestErrorRetries: [400],
  AuthenticationErrorRetries: [401],
  NotFoundErrorRetries: [404],
  TimeoutErrorRetries: [408, 504],
  RateLimitErrorRetries: [429],
  ContentPolicyViolationErrorRetries: [400],
  InternalServerErrorRetries: [500],
  ServiceUnavailableErrorRetries: [503],
};

function readRetries(router: SourceNode, either: Either, members: Members): void {
  const node = either('num_retries');
  const attempts = node.isGiven ? readAttempts(node) : null;
  if (attempts !== null) members['retry'] = { attempts };
  const policy = router.member('retry_policy');
  const counts = policy.members().flatMap((each) => {
    const statuses = lookUp(errorStatuses, each.name);
    const count = statuses === undefined || !each.isGiven ? null : each.number();
    return statuses === undefined || count === null ? [] : [{ statuses: count > 0 ? statuses : [], count }];
  });
  if (counts.length === 0) return;
  const most = Math.min(Math.max(...counts.map(({ count }) => Math.round(count))), attemptsMax);
  const statuses = [...new Set(counts.flatMap((each) => each.statuses))].toSorted((a, b) => a - b);
  members['retry'] = { attempts: most, ...(statuses.length === 0 ? {} : { on_status_codes: statuses }) };
  policy.changed(`All statuses that are retried have the same number of retries: ${most}.`);
}

function readTimeouts(router: SourceNode, module: SourceNode, members: Members): void {
  const [timeout, requestTimeout] = [router.member('timeout'), module.member('request_timeout')];
  if (timeout.isGiven) requestTimeout.same('router_settings.timeout counts.');
  const node = timeout.isGiven ? timeout : requestTimeout;
  const ms = node.isGiven ? readTimeout(node) : null;
  if (ms !== null) members['request_timeout'] = ms;
  readStreamTimeout(router.member('stream_timeout'), ms ?? undefined);
}

function readStrategy(node: SourceNode): void {
  const strategy = node.isGiven ? node.text() : null;
  if (strategy === null) return;
  node.translated(
    strategy === 'simple-shuffle' ? null : 'A load balancer selects by weight: by `weight`, or else by rpm or tpm.',
  );
}

function readAliases(section: SourceNode): Routing['aliases'] {
  return section.members().flatMap((node) => {
    const named = typeof node.value === 'object' ? node.member('model') : node;
    const model = named.isGiven ? named.text() : null;
    if (node.member('hidden').isGiven) node.member('hidden').changed('Models are listed. To hide one, set `allowed`.');
    const hasName = node.name.trim() !== '';
    if (!hasName) named.unsupported('The alias has no name.');
    return model !== null && hasName ? [{ node: named, name: node.name, model }] : [];
  });
}

/** `[{name: [fallback, …]}, …]`. */
function readFallbacks(section: SourceNode): (FallbackList & { name: string })[] {
  const maps = section.items();
  return maps
    .flatMap((map) => map.members())
    .flatMap((node) => {
      if (Array.isArray(node.value) && node.value.some((item) => typeof item !== 'string')) {
        node.unsupported('A fallback with its own parameters. Create a model with these parameters, and name it here.');
        return [];
      }
      const names = node.isGiven ? node.texts() : null;
      return names === null ? [] : [{ name: node.name, node, names }];
    });
}

function addFallback(all: Map<string, FallbackList[]>, { name, ...list }: FallbackList & { name: string }): void {
  all.set(name, [...(all.get(name) ?? []), list]);
}

function readCache(module: SourceNode, members: Members): void {
  const [on, params] = [module.member('cache'), module.member('cache_params')];
  const isOn = on.isGiven && on.flag() === true;
  on.same();
  const [type, ttl, mode] = ['type', 'ttl', 'mode'].map((name) => params.member(name)) as [
    SourceNode,
    SourceNode,
    SourceNode,
  ];
  advise(params, cacheAdvice);
  const isOptIn = mode.isGiven && mode.text() === 'default_off';
  mode.translated(isOptIn ? 'Calls turn the cache on with x-gateway-cache: simple.' : null);
  const name = type.isGiven ? type.text() : null;
  if (name !== null) {
    const isSemantic = name.includes('semantic');
    type.changed(`Answers are cached in memory and in Postgres${isSemantic ? ', by exact match only' : ''}.`);
  }
  const seconds = ttl.isGiven ? ttl.number() : null;
  const { min, max } = cacheMaxAgeSeconds;
  const age = seconds === null ? null : Math.min(Math.max(Math.round(seconds), min), max);
  if (age !== null) ttl.translated(age === seconds ? null : `${age} s: the range is ${min} s to ${max / 86_400} days.`);
  if (isOn && !isOptIn) members['cache'] = { mode: 'simple', ...(age === null ? {} : { max_age: age }) };
}

/** Budgets and rates of everyone, of each user and of each key. */
function readBudgets(module: SourceNode, limits: Limits): void {
  const read = (budget: SourceNode, period: SourceNode, name: string, groupBy: readonly string[]): void => {
    const dollars = readDollars(budget);
    const reset = dollars === null ? null : readReset(period, budget);
    if (dollars === null || reset === null) return;
    const policy = limits.addBudget(name, dollars, reset, [], groupBy);
    budget.changed(`The usage-limit policy '${policy}'. ${overBudget}`);
  };
  read(module.member('max_budget'), module.member('budget_duration'), 'all calls budget', []);
  const user = ['metadata._user'];
  read(
    module.member('max_internal_user_budget'),
    module.member('internal_user_budget_duration'),
    'each user budget',
    user,
  );
  const users = module.member('default_internal_user_params');
  read(users.member('max_budget'), users.member('budget_duration'), 'each user budget', user);
  users.unsupported('Invite people with a role (docs/people.md).');
  const keys = module.member('default_key_generate_params');
  read(keys.member('max_budget'), keys.member('budget_duration'), 'each API key budget', ['api_key']);
  for (const [name, type] of [
    ['rpm_limit', 'requests'],
    ['tpm_limit', 'tokens'],
  ] as const) {
    const node = keys.member(name);
    const value = node.isGiven ? node.number() : null;
    if (value === null) continue;
    const policy = limits.addRate(`each API key ${type} per minute`, type, value, [], ['api_key']);
    node.changed(`The rate-limit policy '${policy}', for all keys.`);
  }
  keys.unsupported('Set it on each API key (docs/keys.md).');
}

function readCallbacks(module: SourceNode): void {
  for (const name of ['success_callback', 'failure_callback', 'callbacks', 'service_callback', 'service_callbacks']) {
    const node = module.member(name);
    if (!node.isGiven) continue;
    const names = Array.isArray(node.value) ? node.value : [node.value];
    const known = names.flatMap((each) => (typeof each === 'string' ? (lookUp(callbackAdvice, each) ?? []) : []));
    const isAll = known.length === names.length;
    const others = 'all others: read the request log (docs/logs.md) or the traces (docs/telemetry.md)';
    node.unsupported(`${[...known, ...(isAll ? [] : [others])].join('; ')}.`);
  }
}
