import type { Breach } from '../calls/describe-issue.ts';
import { patternSize } from '../pattern-size.ts';

/** The members that rules across members use. The rest of a config is not relevant here. */
type RuledConfig = {
  strategy?:
    | {
        mode: 'single' | 'fallback' | 'loadbalance' | 'conditional';
        on_status_codes?: unknown;
        continue_streams?: unknown;
        conditions?: readonly { then: string }[] | undefined;
        default?: string | undefined;
        sticky?: unknown;
        cb_config?: unknown;
      }
    | undefined;
  targets?: readonly RuledConfig[] | undefined;
  name?: string | undefined;
  weight?: number | undefined;
  provider?: string | undefined;
  virtual_key?: string | undefined;
  cb_config?: unknown;
  readonly [member: string]: unknown;
};

export type ShapeLimits = {
  textBytesMax: number;
  depthMax: number;
  leavesMax: number;
  nestingMax: number;
  valuesMax: number;
  patternsMax: number;
  patternSizeMax: number;
};

const invalid = (path: PropertyKey[], what: string): Breach => ({
  path,
  code: 'invalid_value',
  text: (name) => `Invalid ${name()}: ${what}`,
});

const missing = (path: PropertyKey[], what: string): Breach => ({
  path,
  code: 'missing_required_parameter',
  text: (name) => `Missing required parameter: ${name()}. ${what}`,
});

/** Whether a value is small enough to be checked. Not recursive, so that deep values cannot overflow the stack. */
export function checkShape(value: unknown, limits: ShapeLimits): Breach | null {
  const { nesting, values, patterns } = survey(value, limits);
  if (nesting > limits.nestingMax) {
    return invalid([], `a config can have at most ${limits.nestingMax} levels of nested JSON.`);
  }
  if (values > limits.valuesMax) {
    return invalid([], `a config can have at most ${limits.valuesMax} JSON values in total.`);
  }
  if (Buffer.byteLength(JSON.stringify(value)) > limits.textBytesMax) {
    return invalid([], `a config can have at most ${limits.textBytesMax} bytes of JSON.`);
  }
  if (patterns.length > limits.patternsMax) {
    return invalid([], `a config can have at most ${limits.patternsMax} regular expressions in total.`);
  }
  if (new Set(patterns).values().reduce((sum, pattern) => sum + patternSize(pattern), 0) > limits.patternSizeMax) {
    return invalid(
      [],
      `its regular expressions are too large. Together, they can have at most ${limits.patternSizeMax} instructions, ` +
        'with repetitions expanded. Use fewer repetitions, or split the config.',
    );
  }
  let leaves = 0;
  const waiting: { node: unknown; path: PropertyKey[]; depth: number }[] = [{ node: value, path: [], depth: 0 }];
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const { node, path, depth } = next;
    const targets = typeof node === 'object' && node !== null && 'targets' in node ? node.targets : undefined;
    if (!Array.isArray(targets)) leaves += 1;
    else if (depth >= limits.depthMax) {
      return invalid([...path, 'targets'], `targets can be nested at most ${limits.depthMax} levels deep.`);
    } else {
      for (const [index, target] of targets.entries()) {
        waiting.push({ node: target, path: [...path, 'targets', index], depth: depth + 1 });
      }
    }
    if (leaves + waiting.length > 2 * limits.leavesMax || leaves > limits.leavesMax) {
      return invalid(['targets'], `a config can have at most ${limits.leavesMax} targets in total.`);
    }
  }
  return null;
}

/**
 * Returns how deep a value nests, how many values it has, and the regular expressions of conditions and checks. Stops at the
 * first limit that is exceeded.
 */
function survey(value: unknown, { nestingMax, valuesMax }: ShapeLimits) {
  const found = { nesting: 0, values: 1, patterns: [] as string[] };
  const waiting: [value: unknown, depth: number][] = [[value, 0]];
  for (
    let next = waiting.pop();
    next && found.nesting <= nestingMax && found.values <= valuesMax;
    next = waiting.pop()
  ) {
    const [current, depth] = next;
    found.nesting = Math.max(found.nesting, depth);
    if (typeof current !== 'object' || current === null) continue;
    const entries = Object.entries(current);
    found.values += entries.length;
    for (const [name, child] of entries) {
      if (typeof child === 'string' && (name === '$regex' || name === 'rule')) found.patterns.push(child);
      waiting.push([child, depth + 1]);
    }
  }
  return found;
}

/**
 * The rules across the members of one level; `credentials` are the names of the members that determine where a call
 * goes.
 */
export function checkRules(
  config: RuledConfig,
  names: { settings: readonly string[]; secrets: readonly string[]; aliases: Readonly<Record<string, string>> },
): Breach | null {
  const { strategy, targets } = config;
  const strategyBreach = strategy === undefined ? null : checkStrategy(strategy, targets);
  if (strategyBreach !== null) return strategyBreach;
  if (strategy?.cb_config !== undefined && config.cb_config !== undefined) {
    return invalid(['cb_config'], 'it is also set in strategy. Set only one of them.');
  }
  for (const [alias, setting] of Object.entries(names.aliases)) {
    if (config[alias] === undefined || config[setting] === undefined) continue;
    return invalid([alias], `it is another name for '${setting}', which is also set. Set only one of them.`);
  }
  return targets === undefined ? checkLeaf(config, names) : checkParent(config, targets, names);
}

function checkStrategy(strategy: NonNullable<RuledConfig['strategy']>, targets: RuledConfig['targets']): Breach | null {
  const { mode } = strategy;
  const at = (member: string): PropertyKey[] => ['strategy', member];
  if (targets === undefined && mode !== 'single')
    return missing(['targets'], `The strategy '${mode}' needs targets to select from.`);
  if (mode === 'single' && targets !== undefined && targets.length > 1) {
    return invalid(
      at('mode'),
      "'single' can have only one target. For several targets, use fallback, loadbalance or conditional.",
    );
  }
  const belongs: Record<string, string> = {
    on_status_codes: 'fallback',
    continue_streams: 'fallback',
    sticky: 'loadbalance',
    conditions: 'conditional',
    default: 'conditional',
  };
  for (const [member, owner] of Object.entries(belongs)) {
    if (strategy[member as keyof typeof strategy] !== undefined && owner !== mode) {
      return invalid(at(member), `it belongs to the strategy '${owner}', not to '${mode}'.`);
    }
  }
  if (mode === 'loadbalance' && targets?.every(({ weight }) => weight === 0)) {
    return invalid(
      ['targets'],
      'all weights are 0, so no target can be selected. Give at least one target a weight above 0.',
    );
  }
  return mode === 'conditional' ? checkConditional(strategy, targets ?? []) : null;
}

function checkConditional(
  { conditions, default: otherwise }: NonNullable<RuledConfig['strategy']>,
  targets: readonly RuledConfig[],
): Breach | null {
  if (conditions === undefined)
    return missing(['strategy', 'conditions'], "The strategy 'conditional' needs at least one condition.");
  if (otherwise === undefined) {
    return missing(['strategy', 'default'], 'It must name the target for calls that match no condition.');
  }
  const known = new Set(targets.map(({ name }) => name));
  const unknown = (path: PropertyKey[], name: string): Breach | null =>
    known.has(name) ? null : invalid(path, `no target has the name '${name.slice(0, 100)}'.`);
  for (const [index, { then }] of conditions.entries()) {
    const breach = unknown(['strategy', 'conditions', index, 'then'], then);
    if (breach !== null) return breach;
  }
  return unknown(['strategy', 'default'], otherwise);
}

function checkParent(
  config: RuledConfig,
  targets: readonly RuledConfig[],
  { settings, secrets }: { settings: readonly string[]; secrets: readonly string[] },
): Breach | null {
  if (config.strategy === undefined && targets.length > 1) {
    return missing(['strategy'], 'A config with several targets needs a strategy that selects between them.');
  }
  const credential = ['provider', 'virtual_key', ...secrets, ...settings].find((name) => config[name] !== undefined);
  if (credential !== undefined) {
    return invalid([credential], 'a config with targets cannot have its own credentials. Move them into the targets.');
  }
  const seen = new Set<string>();
  for (const [index, { name }] of targets.entries()) {
    if (name === undefined) continue;
    if (seen.has(name))
      return invalid(
        ['targets', index, 'name'],
        'another target of the same strategy has this name. Choose another name.',
      );
    seen.add(name);
  }
  return null;
}

function checkLeaf(
  config: RuledConfig,
  { settings, secrets }: { settings: readonly string[]; secrets: readonly string[] },
): Breach | null {
  const { provider, virtual_key: key } = config;
  const named = provider?.startsWith('@') ? provider.slice(1) : undefined;
  const slug = key?.replace(/^@/, '') ?? named;
  if (slug === undefined) return null;
  if (named !== undefined && named !== slug) {
    return invalid(['virtual_key'], 'it names a different virtual key than provider. Set only one of them.');
  }
  if (slug === '')
    return invalid([named === undefined ? 'virtual_key' : 'provider'], 'expected the slug of a virtual key.');
  if (config['api_key'] !== undefined) {
    return invalid(['api_key'], 'the target also has a virtual key. Set only one of them.');
  }
  const setting = [...secrets, ...settings].find((name) => config[name] !== undefined);
  if (setting === undefined) return null;
  return invalid(
    [setting],
    'the target uses a virtual key, which has its own settings. Store this setting in the virtual key (PUT /v1/virtual-keys).',
  );
}
