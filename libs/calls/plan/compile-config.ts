import { configSecretNames, configSettingNames, settingAliases, type Config } from '#libs/contracts/configs/config.ts';
import { parseParamPath } from '#libs/contracts/param-path.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { compileField, compileQuery } from './compile-query.ts';
import { findConversation } from './conversation.ts';
import type { Leaf, LeafCredentials, Plan, PlanNode, PublicModelUse, Sticky, WeightedOption } from './plan.ts';
import { namesGuardrails } from './replace-leaves.ts';

/** The settings that a node inherits from the levels above it. */
type Inherited = Pick<
  Config,
  | 'retry'
  | 'cache'
  | 'request_timeout'
  | 'timeouts'
  | 'custom_host'
  | 'forward_headers'
  | 'strict_open_ai_compliance'
  | 'unsupported_params'
  | 'cache_breakpoints'
  | 'input_guardrails'
  | 'output_guardrails'
  | 'before_request_hooks'
  | 'after_request_hooks'
  | 'cb_config'
  | 'default_params'
  | 'override_params'
  | 'drop_params'
  | 'prompt_id'
  | 'variables'
>;

const nearest = [
  'retry',
  'cache',
  'request_timeout',
  'timeouts',
  'custom_host',
  'forward_headers',
  'strict_open_ai_compliance',
  'unsupported_params',
  'cache_breakpoints',
  'input_guardrails',
  'output_guardrails',
  'before_request_hooks',
  'after_request_hooks',
  'prompt_id',
] as const satisfies (keyof Inherited)[];

/**
 * Compiles a parsed config into a plan, in which every leaf has all settings that the levels above it define.
 * Parameters are merged, with the child's over the parent's, and paths to drop are combined. For all other settings the
 * nearest definition applies (`cache: null` turns off an inherited one). Pure. Every config that `ConfigInput` accepts
 * can be compiled. `publicModel`: the public model whose targets these are.
 */
export function compileConfig(config: Config, publicModel: PublicModelUse | null = null): Plan {
  const leaves: Leaf[] = [];
  const root = compileNode(config, 'config', {}, { leaves, publicModel });
  const [first, ...rest] = leaves;
  if (first === undefined) throw new Error('a config without a target was not rejected');
  return { root, leaves: [first, ...rest], namesGuardrails: leaves.some(namesGuardrails) };
}

type Compiling = { leaves: Leaf[]; publicModel: PublicModelUse | null };

function compileNode(config: Config, path: string, above: Inherited, made: Compiling): PlanNode {
  const here = inherit(above, config);
  const { targets, strategy } = config;
  if (targets === undefined) {
    const leaf = toLeaf(config, path, here, made.publicModel);
    made.leaves.push(leaf);
    return { kind: 'leaf', leaf };
  }
  const options = targets.map((target, index): WeightedOption => {
    const at = `${path}.targets[${index}]`;
    return { weight: target.weight ?? 1, key: target.name ?? at, node: compileNode(target, at, here, made) };
  });
  const nodes = options.map(({ node }) => node);
  const named = (name: string | undefined): PlanNode =>
    nodes[targets.findIndex((target) => target.name === name)] as PlanNode;
  switch (strategy?.mode) {
    case undefined:
    case 'single':
      return nodes[0] as PlanNode;
    case 'fallback': {
      const { on_status_codes: statuses, continue_streams: continuesStreams = false } = strategy;
      return { kind: 'fallback', options: nodes, statuses: statuses ? new Set(statuses) : null, continuesStreams };
    }
    case 'loadbalance':
      return {
        kind: 'loadbalance',
        options: options.filter(({ weight }) => weight > 0),
        sticky: compileSticky(strategy.sticky),
      };
    case 'conditional':
      return {
        kind: 'conditional',
        conditions: (strategy.conditions ?? []).map(({ query, then }) => ({
          matches: compileQuery(query),
          node: named(then),
        })),
        otherwise: named(strategy.default),
      };
  }
}

/** Without fields, the calls of one conversation stay on one target. */
function compileSticky(sticky: NonNullable<Config['strategy']>['sticky']): Sticky | null {
  if (sticky === undefined) return ofConversations;
  if (!sticky.enabled) return null;
  return {
    fields: sticky.hash_fields?.map(compileField) ?? ofConversations.fields,
    ttlMs: sticky.ttl === undefined ? null : sticky.ttl * 1_000,
  };
}

const ofConversations: Sticky = { fields: [findConversation], ttlMs: null };

function inherit(above: Inherited, config: Config): Inherited {
  const here: Record<string, unknown> = { ...above };
  for (const member of nearest) if (config[member] !== undefined) here[member] = config[member];
  const breaker = config.cb_config ?? config.strategy?.cb_config;
  if (breaker !== undefined) here['cb_config'] = breaker;
  for (const member of ['default_params', 'override_params', 'variables'] as const) {
    if (config[member] !== undefined) here[member] = { ...above[member], ...config[member] };
  }
  if (config.drop_params !== undefined) here['drop_params'] = [...(above.drop_params ?? []), ...config.drop_params];
  return here;
}

function toLeaf(config: Config, path: string, here: Inherited, publicModel: PublicModelUse | null): Leaf {
  const { retry } = here;
  return Object.freeze<Leaf>({
    path,
    name: config.name ?? null,
    credentials: readCredentials(config, here),
    defaults: rawMembers(here.default_params),
    overrides: rawMembers(here.override_params),
    drops: (here.drop_params ?? []).map((drop) => parseParamPath(drop) ?? []),
    prompt: here.prompt_id === undefined ? null : { name: here.prompt_id, variables: here.variables ?? {} },
    retry: retry
      ? {
          attempts: retry.attempts,
          statuses: retry.on_status_codes ?? null,
          obeysRetryAfter: retry.use_retry_after_headers,
          jitter: retry.jitter,
        }
      : null,
    timeouts: mergeTimeouts(here),
    cache: here.cache ?? null,
    inputGuardrails: [...(here.input_guardrails ?? []), ...(here.before_request_hooks ?? [])],
    outputGuardrails: [...(here.output_guardrails ?? []), ...(here.after_request_hooks ?? [])],
    breaker: here.cb_config ?? null,
    forwardHeaders: here.forward_headers ?? [],
    strict: here.strict_open_ai_compliance ?? true,
    unsupportedParams: here.unsupported_params ?? 'drop',
    cacheBreakpoints: here.cache_breakpoints ?? false,
    publicModel,
  });
}

function readCredentials(config: Config, here: Inherited): LeafCredentials {
  const settings: Record<string, string> = {};
  for (const name of configSettingNames) {
    const value = config[name];
    if (typeof value === 'string') settings[settingAliases[name] ?? name] = value;
  }
  const secrets: Record<string, Secret> = {};
  for (const name of configSecretNames) {
    const value = config[name];
    if (name !== 'api_key' && typeof value === 'string') secrets[name] = new Secret(value);
  }
  const { provider, virtual_key: key } = config;
  const isKey = provider?.startsWith('@') === true;
  const apiKey = config['api_key'];
  return {
    virtualKey: key?.replace(/^@/, '') ?? (isKey ? provider.slice(1) : null),
    provider: isKey ? null : (provider ?? null),
    apiKey: typeof apiKey === 'string' ? new Secret(apiKey) : null,
    customHost: here.custom_host ?? null,
    settings,
    secrets,
  };
}

function rawMembers(params: Readonly<Record<string, unknown>> | undefined): ReadonlyMap<string, string> {
  return new Map(Object.entries(params ?? {}).map(([name, value]) => [name, JSON.stringify(value)]));
}

function mergeTimeouts({ request_timeout: answerMs, timeouts }: Inherited): Partial<Timeouts> | null {
  if (answerMs === undefined && timeouts === undefined) return null;
  const result: Partial<Timeouts> = {};
  if (answerMs !== undefined) result.answerMs = answerMs;
  if (timeouts?.connect_ms !== undefined) result.connectMs = timeouts.connect_ms;
  if (timeouts?.header_ms !== undefined) result.headersMs = timeouts.header_ms;
  if (timeouts?.idle_ms !== undefined) result.idleMs = timeouts.idle_ms;
  if (timeouts?.total_ms !== undefined) result.totalMs = timeouts.total_ms;
  return result;
}
