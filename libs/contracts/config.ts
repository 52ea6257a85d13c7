import { z } from 'zod';
import type { SettingForm } from '#libs/providers/provider.ts';
import { settingFields } from '#libs/providers/setting-fields.ts';
import { CircuitBreakerInput } from './circuit-breaker.ts';
import { checkRules, checkShape } from './config-rules.ts';
import { isQueryField, QueryInput } from './config-query.ts';
import { ForwardHeader } from './forward-headers.ts';
import { GuardrailList } from './guardrails.ts';
import { parseParamPath } from './param-path.ts';
import { CacheInput } from './response-cache.ts';
import { addBreach, decimal, integer, text } from './scalars.ts';
import { secretNames, settingNames } from './virtual-keys.ts';

// The config object (CONF-1). Strict at every level, because a member that nobody reads is a mistake of the
// author (Portkey ignored a misspelt flag for years).

/** Bounds of what the gateway checks for one call. */
export const configLimits = {
  textBytesMax: 65_536,
  /** Strategies inside strategies; the outermost targets are at depth 1. */
  depthMax: 5,
  leavesMax: 50,
  /** Of the JSON as a whole, parameters and schemas included. */
  nestingMax: 64,
  /** Regular expressions: each costs milliseconds to compile, and a config may come with every call. */
  patternsMax: 100,
  /** Of them together, in instructions of RE2: some 30 ms to compile. Far beyond a hundred of the usual ones. */
  patternSizeMax: 20_000,
  /** An attempt may take as long as the gateway ever waits. */
  timeoutMsMax: 1_800_000,
} as const;

const statuses = () =>
  z
    .array(integer({ min: 200, max: 599 }))
    .min(1)
    .max(100);
const name = () => text({ min: 1, max: 200 });
const milliseconds = () => integer({ min: 1, max: configLimits.timeoutMsMax }).optional();

const queryField = z
  .string()
  .max(500)
  .check((context) => {
    if (isQueryField(context.value)) return;
    addBreach(context, {
      path: [],
      code: 'invalid_value',
      text: (name) => `Invalid ${name()}: expected 'metadata.<key>', 'params.<path>' or 'url.pathname'.`,
    });
  });

const Strategy = z.strictObject({
  mode: z.enum(['single', 'fallback', 'loadbalance', 'conditional']),
  on_status_codes: statuses().optional(),
  conditions: z
    // oxlint-disable-next-line unicorn/no-thenable -- the member's name is the interface's
    .array(z.strictObject({ query: QueryInput, then: name() }))
    .min(1)
    .max(50)
    .optional(),
  default: name().optional(),
  sticky: z
    .strictObject({
      enabled: z.boolean().default(true),
      hash_fields: z.array(queryField).min(1).max(10),
      /** Seconds for which a caller stays with a target. Absent: for as long as the targets are the same. */
      ttl: integer({ min: 1, max: 31_536_000 }).optional(),
    })
    .optional(),
  cb_config: CircuitBreakerInput.optional(),
});

const Retry = z
  .strictObject({
    /** Calls after the first. */
    attempts: integer({ min: 0, max: 5 }),
    on_status_codes: statuses().optional(),
    /** Default true: a provider that says when to come back is not asked sooner. Both spellings are accepted. */
    use_retry_after_headers: z.boolean().optional(),
    use_retry_after_header: z.boolean().optional(),
    /** Default true: waits are spread at random, so that callers refused together do not come back together. */
    jitter: z.boolean().default(true),
  })
  .transform(({ use_retry_after_header: singular, use_retry_after_headers: plural, ...retry }, context) => {
    if (singular !== undefined && plural !== undefined && singular !== plural) {
      addBreach(context, {
        path: ['use_retry_after_header'],
        code: 'invalid_value',
        text: (name) =>
          `Invalid ${name()}: it says the opposite of ${name('use_retry_after_headers')}. Give one of them.`,
      });
    }
    return { ...retry, use_retry_after_headers: plural ?? singular ?? true };
  });

// Members that the core reads from the client's own body. If a config changed them, the answer would have a form that the client
// did not ask for.
const clientsOwn: ReadonlySet<string> = new Set(['stream']);

/** Parameters to put into a body; an explicit null is written as null. */
const params = () =>
  z.looseObject({}).check((context) => {
    const found = Object.keys(context.value).find((param) => clientsOwn.has(param));
    if (found !== undefined) addBreach(context, clientsChoice([found]));
    const { model } = context.value;
    if (model === undefined || (typeof model === 'string' && model !== '')) return;
    addBreach(context, {
      path: ['model'],
      code: 'invalid_type',
      text: (name) => `Invalid type for ${name()}: expected the name of a model.`,
    });
  });

const dropPath = z
  .string()
  .max(500)
  .check((context) => {
    const steps = parseParamPath(context.value);
    if (steps === null) {
      addBreach(context, {
        path: [],
        code: 'invalid_value',
        text: (name) => `Invalid ${name()}: expected a path like 'logit_bias' or 'tools[*].function.strict'.`,
      });
    } else if (clientsOwn.has(context.value) || context.value === 'model') addBreach(context, clientsChoice([]));
  });

const clientsChoice = (path: string[]) => ({
  path,
  code: 'invalid_value',
  text: (name: () => string) => `Invalid ${name()}: a config cannot change this parameter; the caller chooses it.`,
});

/** Shorter names of some settings, which Portkey's configs use. */
export const settingAliases: Readonly<Record<string, string>> = Object.fromEntries(
  Object.entries<SettingForm>(settingFields).flatMap(([name, { alias }]) =>
    alias === undefined ? [] : [[alias, name]],
  ),
);

const settingText = () => text({ min: 1, max: 2_048 }).optional();
const secretText = () => text({ min: 1, max: 16_384 }).optional();

export const configSecretNames: readonly string[] = ['api_key', ...secretNames];
export const configSettingNames: readonly string[] = [...settingNames, ...Object.keys(settingAliases)];

const settingMembers = Object.fromEntries(configSettingNames.map((setting) => [setting, settingText()]));
const secretMembers = Object.fromEntries(configSecretNames.map((secret) => [secret, secretText()]));

const members = {
  strategy: Strategy.optional(),
  name: name().optional(),
  /** Share of the calls in a loadbalance; absent: 1; 0: off. */
  weight: decimal(0, 1_000_000).optional(),
  provider: name().optional(),
  virtual_key: name().optional(),
  custom_host: text({ min: 1, max: 2_048 }).optional(),
  retry: Retry.optional(),
  cache: CacheInput.nullish(),
  /** Milliseconds of one attempt, until its whole answer is there; of a stream, until its first event is. */
  request_timeout: milliseconds(),
  timeouts: z
    .strictObject({
      connect_ms: milliseconds(),
      /** From the request's last byte to the answer's headers. */
      header_ms: milliseconds(),
      /** Between two pieces of an answer. */
      idle_ms: milliseconds(),
      /** The whole attempt, of a stream to its end. */
      total_ms: milliseconds(),
    })
    .optional(),
  override_params: params().optional(),
  default_params: params().optional(),
  drop_params: z.array(dropPath).max(100).optional(),
  /** A stored prompt: `slug`, `slug@version`, `slug@label` or id. Its messages come before those of the call. */
  prompt_id: text({ min: 1, max: 300 }).optional(),
  /** For that prompt; `variables` of the call replace them. */
  variables: z.looseObject({}).optional(),
  forward_headers: z.array(ForwardHeader).max(50).optional(),
  strict_open_ai_compliance: z.boolean().optional(),
  unsupported_params: z.enum(['drop', 'refuse']).optional(),
  input_guardrails: GuardrailList.optional(),
  output_guardrails: GuardrailList.optional(),
  before_request_hooks: GuardrailList.optional(),
  after_request_hooks: GuardrailList.optional(),
  cb_config: CircuitBreakerInput.optional(),
};

type Members = z.output<z.ZodObject<typeof members>>;

/** A config as parsed: defaults filled in, both spellings of a member made one. Settings and secrets by their names. */
export type Config = Members & {
  targets?: Config[] | undefined;
  readonly [setting: string]: unknown;
};

const ConfigNode: z.ZodType<Config> = z.lazy(() =>
  z
    .strictObject({
      ...members,
      ...settingMembers,
      ...secretMembers,
      targets: z.array(ConfigNode).min(1).max(configLimits.leavesMax).optional(),
    })
    .check((context) => {
      const breach = checkRules(context.value, ruleNames);
      if (breach !== null) addBreach(context, breach);
    }),
);

const ruleNames = { settings: configSettingNames, secrets: configSecretNames, aliases: settingAliases };

/**
 * A whole config. Its size and nesting are checked first, so that a hostile one is not walked through, then every member, and
 * then the rules across the members of each level (libs/contracts/config-rules.ts).
 */
export const ConfigInput = z
  .looseObject({})
  .check((context) => {
    const breach = checkShape(context.value, configLimits);
    if (breach !== null) addBreach(context, breach);
  })
  .pipe(ConfigNode as unknown as z.ZodType<Config, Record<string, unknown>>);
