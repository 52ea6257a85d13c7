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

// The config object (CONF-1). Strict at every level, because a member that has no effect is a mistake of the author
// (Portkey ignored a misspelt flag for years).

/** Limits of the checks that the gateway makes for one call. */
export const configLimits = {
  textBytesMax: 65_536,
  /** Strategies inside strategies; the outermost targets are at depth 1. */
  depthMax: 5,
  leavesMax: 50,
  /** Applies to the JSON as a whole, including parameters and schemas. */
  nestingMax: 64,
  /**
   * Applies like the limit above. Every copy and check of a config takes time for each of its values, and most of it is
   * on the main thread.
   */
  valuesMax: 4_000,
  /** Regular expressions: each costs milliseconds to compile, and a config can come with every call. */
  patternsMax: 100,
  /** Their total size, in instructions of RE2: some 30 ms to compile, and far above a hundred ordinary ones. */
  patternSizeMax: 20_000,
  /** An attempt can take as long as the gateway's longest wait. */
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
    .describe(
      '`single` uses one target, `fallback` tries the next target after a failure, `loadbalance` selects by weight, and `conditional` selects by conditions.',
    ),
  on_status_codes: statuses()
    .optional()
    .describe('For `fallback`: the statuses after which the next target is tried. Default: all except 2xx.'),
  continue_streams: z
    .boolean()
    .optional()
    .describe(
      'For `fallback`: whether the next target continues a stream that broke off in its text, as a new turn that begins where the text ends. Default: false.',
    ),
  conditions: z
    // oxlint-disable-next-line unicorn/no-thenable -- the member's name is the interface's
    .array(z.strictObject({ query: QueryInput, then: name() }))
    .min(1)
    .max(50)
    .optional()
    .describe('The first condition whose query matches selects the target.'),
  default: name().optional().describe('The name of the target if no condition matches.'),
  sticky: z
    .strictObject({
      enabled: z.boolean().default(true).describe('False selects a target for each call.'),
      hash_fields: z
        .array(queryField)
        .min(1)
        .max(10)
        .optional()
        .describe('The values that identify a caller. Default: the conversation of the call.'),
      ttl: integer({ min: 1, max: 31_536_000 })
        .optional()
        .describe('How many seconds a caller keeps its target. Default: until the targets change.'),
    })
    .optional()
    .describe('For `loadbalance`: which calls stay on one target. Default: those of one conversation.'),
  cb_config: CircuitBreakerInput.optional(),
});

const Retry = z
  .strictObject({
    attempts: integer({ min: 0, max: 5 }).describe('The number of retries after the first attempt.'),
    on_status_codes: statuses()
      .optional()
      .describe('The statuses that are retried. Default: 429, 500, 502, 503, 504 and 529.'),
    use_retry_after_headers: z
      .boolean()
      .optional()
      .describe('Whether to wait as long as the provider requests. Default: true.'),
    // Portkey has both spellings.
    use_retry_after_header: z.boolean().optional(),
    jitter: z
      .boolean()
      .default(true)
      .describe('Whether to randomise waits, so that rejected callers do not all retry at the same moment.'),
  })
  .transform(({ use_retry_after_header: singular, use_retry_after_headers: plural, ...retry }, context) => {
    if (singular !== undefined && plural !== undefined && singular !== plural) {
      addBreach(context, {
        path: ['use_retry_after_header'],
        code: 'invalid_value',
        text: (name) => `Invalid ${name()}: it contradicts ${name('use_retry_after_headers')}. Set only one of them.`,
      });
    }
    return { ...retry, use_retry_after_headers: plural ?? singular ?? true };
  });

// Members that the core reads from the client's own body. If a config changed them, the answer would have a form that the client
// did not ask for.
const clientsOwn: ReadonlySet<string> = new Set(['stream']);

/** Parameters to insert into a body; an explicit null is written as null. */
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
  text: (name: () => string) => `Invalid ${name()}: a config cannot change this parameter. It is set by the request.`,
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

/** The members of one level of a config, apart from `targets`, settings and secrets. */
export const configMembers = {
  strategy: Strategy.optional().describe('How a target is selected.'),
  name: name().optional().describe('The name that conditions use for this target.'),
  weight: decimal(0, 1_000_000)
    .optional()
    .describe('The share of calls with `loadbalance`. Default: 1. 0 turns the target off.'),
  provider: name()
    .optional()
    .describe('The ID of an AI provider, or `@slug` for a virtual key or a provider of GET /providers.'),
  virtual_key: name().optional().describe('The slug of a stored credential.'),
  custom_host: text({ min: 1, max: 2_048 })
    .optional()
    .describe('The address to call instead of the default address of the provider.'),
  retry: Retry.optional(),
  cache: CacheInput.nullish().describe(
    '`simple`, or an object with mode and maximum age. Null turns off an inherited cache.',
  ),
  request_timeout: milliseconds().describe(
    'Milliseconds for one attempt until its answer is complete or, for a stream, until its first event.',
  ),
  timeouts: z
    .strictObject({
      connect_ms: milliseconds(),
      header_ms: milliseconds().describe(
        'Milliseconds from the last byte of the request to the headers of the answer.',
      ),
      idle_ms: milliseconds().describe('Milliseconds between two pieces of an answer.'),
      total_ms: milliseconds().describe('Milliseconds for the whole attempt, including the whole stream.'),
    })
    .optional(),
  override_params: params().optional().describe('Body parameters that replace those of the request.'),
  default_params: params().optional().describe('Body parameters that are added if the request does not have them.'),
  drop_params: z.array(dropPath).max(100).optional().describe('Paths of parameters that are removed from the body.'),
  prompt_id: text({ min: 1, max: 300 })
    .optional()
    .describe(
      'A stored prompt (slug, slug@version, slug@label or ID). Its messages are inserted before those of the request.',
    ),
  variables: z.looseObject({}).optional().describe('Variables for this prompt. Variables of the request replace them.'),
  forward_headers: z
    .array(ForwardHeader)
    .max(50)
    .optional()
    .describe('Headers of the request that are forwarded to the provider.'),
  strict_open_ai_compliance: z
    .boolean()
    .optional()
    .describe('Whether answers contain only members that OpenAI defines.'),
  unsupported_params: z
    .enum(['drop', 'refuse'])
    .optional()
    .describe(
      'What happens to parameters that the provider does not support: `drop` removes them, `refuse` rejects the call with 400.',
    ),
  cache_breakpoints: z
    .boolean()
    .optional()
    .describe(
      'Whether requests to Claude without `cache_control` get it: after the tools, the system prompt and the last two turns of the user.',
    ),
  input_guardrails: GuardrailList.optional(),
  output_guardrails: GuardrailList.optional(),
  before_request_hooks: GuardrailList.optional(),
  after_request_hooks: GuardrailList.optional(),
  cb_config: CircuitBreakerInput.optional().describe(
    'When calls to this target are suspended after failures. `{}` uses sensible defaults.',
  ),
};

type Members = z.output<z.ZodObject<typeof configMembers>>;

/**
 * A config as parsed: defaults are filled in, and the two spellings of a member are unified. Settings and secrets have
 * their own names.
 */
export type Config = Members & {
  targets?: Config[] | undefined;
  readonly [setting: string]: unknown;
};

/** One level of a config. A whole one is checked by `ConfigInput`. */
export const ConfigNode: z.ZodType<Config> = z.lazy(() =>
  z
    .strictObject({
      ...configMembers,
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
 * A whole config. Its size and nesting are checked first, so that a hostile one is not traversed, then every member,
 * and then the rules across the members of each level (libs/contracts/configs/config-rules.ts).
 */
export const ConfigInput = z
  .looseObject({})
  .check((context) => {
    const breach = checkShape(context.value, configLimits);
    if (breach !== null) addBreach(context, breach);
  })
  .pipe(ConfigNode as unknown as z.ZodType<Config, Record<string, unknown>>);
