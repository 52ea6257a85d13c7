import { z } from 'zod';
import type { SettingForm } from '#libs/providers/provider.ts';
import { settingFields } from '#libs/providers/setting-fields.ts';
import { CircuitBreakerInput } from './circuit-breaker.ts';
import { checkRules, checkShape } from './config-rules.ts';
import { isQueryField, QueryInput } from './config-query.ts';
import { ForwardHeader } from '../calls/forward-headers.ts';
import { GuardrailList } from './guardrails.ts';
import { outputBounds } from '../calls/output-bounds.ts';
import { parseParamPath } from '../param-path.ts';
import { CacheInput } from '../calls/response-cache.ts';
import { addBreach, decimal, integer, text } from '../scalars.ts';
import { secretNames, settingNames } from '../virtual-keys.ts';

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
  /** As above. Every copy and check of a config takes time for each of its values, and most of it is on the main thread. */
  valuesMax: 4_000,
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
  mode: z
    .enum(['single', 'fallback', 'loadbalance', 'conditional'])
    .describe('one target; the next one after a failure; one by weight; one by conditions'),
  on_status_codes: statuses().optional().describe('of a fallback: which answers lead on. Absent: all but 2xx'),
  conditions: z
    // oxlint-disable-next-line unicorn/no-thenable -- the member's name is the interface's
    .array(z.strictObject({ query: QueryInput, then: name() }))
    .min(1)
    .max(50)
    .optional()
    .describe('the first whose query matches names the target'),
  default: name().optional().describe('the name of the target when no condition holds'),
  sticky: z
    .strictObject({
      enabled: z.boolean().default(true),
      hash_fields: z.array(queryField).min(1).max(10),
      ttl: integer({ min: 1, max: 31_536_000 })
        .optional()
        .describe('seconds that a caller stays with a target. Absent: as long as the targets are the same'),
    })
    .optional(),
  cb_config: CircuitBreakerInput.optional(),
});

const Retry = z
  .strictObject({
    attempts: integer({ min: 0, max: 5 }).describe('calls after the first'),
    on_status_codes: statuses().optional().describe('absent: 429, 500, 502, 503, 504 and 529'),
    use_retry_after_headers: z
      .boolean()
      .optional()
      .describe('true if absent: a provider that says when to come back is not asked sooner'),
    // Portkey has both spellings.
    use_retry_after_header: z.boolean().optional(),
    jitter: z
      .boolean()
      .default(true)
      .describe('waits are spread at random, so that callers refused together do not come back together'),
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
  z.looseObject(outputBounds).check((context) => {
    const found = Object.keys(context.value).find((param) => clientsOwn.has(param));
    if (found !== undefined) addBreach(context, clientsChoice([found]));
    const { model } = context.value as { model?: unknown };
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
  strategy: Strategy.optional().describe('how one of the targets is chosen'),
  name: name().optional().describe('what conditions call this target'),
  weight: decimal(0, 1_000_000).optional().describe('share of the calls in a loadbalance; absent: 1; 0: off'),
  provider: name().optional().describe('a provider of GET /providers, with a credential of its own'),
  virtual_key: name().optional().describe('the slug of a stored credential'),
  custom_host: text({ min: 1, max: 2_048 }).optional().describe("instead of the provider's own address"),
  retry: Retry.optional(),
  cache: CacheInput.nullish().describe('"simple", or its mode and age; null turns an inherited one off'),
  request_timeout: milliseconds().describe(
    'milliseconds of one attempt until its whole answer is there; of a stream, until its first event is',
  ),
  timeouts: z
    .strictObject({
      connect_ms: milliseconds(),
      header_ms: milliseconds().describe("from the request's last byte to the answer's headers"),
      idle_ms: milliseconds().describe('between two pieces of an answer'),
      total_ms: milliseconds().describe('the whole attempt, of a stream to its end'),
    })
    .optional(),
  override_params: params().optional().describe('members of the body that replace those of the call'),
  default_params: params().optional().describe('members of the body that the call does not have'),
  drop_params: z.array(dropPath).max(100).optional().describe('paths of members that are removed from the body'),
  prompt_id: text({ min: 1, max: 300 })
    .optional()
    .describe('a stored prompt (slug, slug@version, slug@label or id): its messages come before those of the call'),
  variables: z.looseObject({}).optional().describe('for that prompt; variables of the call replace them'),
  forward_headers: z.array(ForwardHeader).max(50).optional().describe('headers of the caller that are sent on'),
  strict_open_ai_compliance: z.boolean().optional().describe("whether answers have OpenAI's members only"),
  unsupported_params: z
    .enum(['drop', 'refuse'])
    .optional()
    .describe('what the provider does not know is removed, or 400'),
  input_guardrails: GuardrailList.optional(),
  output_guardrails: GuardrailList.optional(),
  before_request_hooks: GuardrailList.optional(),
  after_request_hooks: GuardrailList.optional(),
  cb_config: CircuitBreakerInput.optional().describe('when calls to this target stop for a while; {} is a good choice'),
};

type Members = z.output<z.ZodObject<typeof members>>;

/** A config as parsed: defaults filled in, both spellings of a member made one. Settings and secrets by their names. */
export type Config = Members & {
  targets?: Config[] | undefined;
  readonly [setting: string]: unknown;
};

/** One level of a config. A whole one is checked by `ConfigInput`. */
export const ConfigNode: z.ZodType<Config> = z.lazy(() =>
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
 * then the rules across the members of each level (libs/contracts/configs/config-rules.ts).
 */
export const ConfigInput = z
  .looseObject({})
  .check((context) => {
    const breach = checkShape(context.value, configLimits);
    if (breach !== null) addBreach(context, breach);
  })
  .pipe(ConfigNode as unknown as z.ZodType<Config, Record<string, unknown>>);
