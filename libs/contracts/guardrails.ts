import { z } from 'zod';
import { addBreach, anyObject, integer, text } from './scalars.ts';

// Guardrails of a config (CONF-5): a list of guardrails, each with one check or more, in the
// long form of before_request_hooks ({"type":"guardrail","checks":[{"id":"default.contains","parameters":{…}}]}) or in the
// short form, where checks are members by their names ({"default.contains":{…},"deny":true}); `default.` may be left out.

/** Bounds of what a tenant may have evaluated on every call. */
export const guardrailLimits = {
  guardrailsMax: 20,
  checksMax: 20,
  listMax: 1_000,
  wordLengthMax: 1_000,
  /** Source of one regular expression. */
  patternLengthMax: 1_000,
  /** A JSON Schema as JSON text, and how deep it nests. */
  schemaBytesMax: 65_536,
  schemaDepthMax: 32,
  webhookTimeoutMsMax: 30_000,
} as const;

const { listMax, wordLengthMax, patternLengthMax } = guardrailLimits;

const words = () =>
  z
    .array(text({ min: 1, max: wordLengthMax }))
    .min(1)
    .max(listMax);
const not = z.boolean().default(false);
const anyAllNone = z.enum(['any', 'all', 'none']);
const count = () => integer({ min: 0, max: 1_000_000_000 }).optional();

type CountRange = { min: number | undefined; max: number | undefined; not: boolean };

/** A range under Portkey's own names, or as `min` and `max`; at least one bound, in order. */
const countOf = (noun: 'Words' | 'Sentences' | 'Characters') => {
  const [minName, maxName] = [`min${noun}`, `max${noun}`] as const;
  return z
    .strictObject({ min: count(), max: count(), [minName]: count(), [maxName]: count(), not })
    .transform((given): CountRange => {
      const { min, max, not, ...named } = given as CountRange & Record<string, number | undefined>;
      return { min: min ?? named[minName], max: max ?? named[maxName], not };
    })
    .check((context) => {
      const { min, max } = context.value;
      if (min === undefined && max === undefined) {
        addBreach(context, {
          path: ['min'],
          code: 'missing_required_parameter',
          text: (name) => `Missing required parameter: ${name()} or ${name('max')}.`,
        });
      } else if (min !== undefined && max !== undefined && min > max) {
        addBreach(context, {
          path: ['min'],
          code: 'invalid_value',
          text: (name) => `Invalid ${name()}: it is above ${name('max')}, so that no text could pass.`,
        });
      }
    });
};

/** Names of request types: ours, and Portkey's. */
const requestTypes = { complete: 'completions', chatComplete: 'chat', embed: 'embeddings' } as const;
const requestType = z
  .enum(['chat', 'completions', 'embeddings', 'responses', 'complete', 'chatComplete', 'embed'])
  .transform((name): string => (name in requestTypes ? requestTypes[name as keyof typeof requestTypes] : name));

const headers = z.record(
  z
    .string()
    .min(1)
    .max(100)
    .regex(/^[a-zA-Z0-9-]+$/),
  z
    .string()
    .max(4_096)
    .regex(/^[\t\x20-\x7e]*$/),
);

/** The parameters of each check, by its name. */
const checks = {
  regexMatch: z.strictObject({ rule: text({ min: 1, max: patternLengthMax }), not }),
  contains: z.strictObject({ words: words(), operator: anyAllNone.default('any'), not }),
  wordCount: countOf('Words'),
  sentenceCount: countOf('Sentences'),
  characterCount: countOf('Characters'),
  jsonSchema: z.strictObject({ schema: anyObject(), not }),
  jsonKeys: z.strictObject({ keys: words(), operator: anyAllNone.default('any') }),
  /** `onlyDNS` of Portkey is accepted and has no effect: a URL is judged by its syntax, nothing is resolved. */
  validUrls: z.strictObject({ onlyDNS: z.boolean().optional(), not }),
  modelWhitelist: z.strictObject({ models: words(), not }),
  requiredMetadataKeys: z.strictObject({ metadataKeys: words(), operator: anyAllNone.default('all') }),
  allowedRequestTypes: z.strictObject({
    allowedTypes: z.array(requestType).max(20).optional(),
    blockedTypes: z.array(requestType).max(20).optional(),
    not,
  }),
  webhook: z.strictObject({
    webhookURL: z.url({ protocol: /^https?$/ }).max(2_048),
    headers: z.union([headers, z.string().max(16_384).transform(parseHeaders).pipe(headers)]).default({}),
    timeout: integer({ min: 1, max: guardrailLimits.webhookTimeoutMsMax }).default(3_000),
    /**
     * What a webhook that does not answer means: true, the check failed; false, it passed. Portkey's default is
     * false: whoever can make the webhook fail (a body that it cannot read, a flood of calls) would have gone around it.
     */
    failOnError: z.boolean().default(true),
  }),
};

type Checks = typeof checks;
export type GuardrailCheckName = keyof Checks;

/** One check, its parameters with their defaults. `id` is the name with `default.`, as results show it. */
export type GuardrailCheck = {
  [Name in GuardrailCheckName]: { name: Name; id: string; parameters: z.output<Checks[Name]> };
}[GuardrailCheckName];

export type Guardrail = {
  /** As given; null: results name it by its place. */
  id: string | null;
  name: string | null;
  /** A failed check refuses the call (446); otherwise it is only told (246). */
  deny: boolean;
  /** Evaluated beside the call; decides nothing. */
  async: boolean;
  /** Portkey's feedback, repeated in the results. */
  onSuccess: Feedback | null;
  onFail: Feedback | null;
  checks: readonly GuardrailCheck[];
};

const Feedback = z.strictObject({
  value: integer({ min: -10, max: 10 }).optional(),
  weight: z.number().min(0).max(1).optional(),
  metadata: z.union([z.record(z.string().max(64), z.string().max(512)), z.string().max(2_048)]).optional(),
});
type Feedback = z.output<typeof Feedback>;
const Outcome = z.strictObject({ feedback: Feedback.optional() });

const names = Object.keys(checks) as GuardrailCheckName[];

const bothNames = Object.fromEntries(
  names.flatMap((name) => [
    [name, checks[name].optional()],
    [`default.${name}`, checks[name].optional()],
  ]),
) as { [Name in GuardrailCheckName as Name | `default.${Name}`]: z.ZodOptional<Checks[Name]> };

const LongCheck = z.discriminatedUnion(
  'id',
  names.map((name) =>
    z.strictObject({
      id: z.enum([name, `default.${name}`]),
      name: text({ max: 200 }).optional(),
      parameters: checks[name],
      is_enabled: z.boolean().default(true),
    }),
  ) as unknown as [
    z.ZodObject<{
      id: z.ZodEnum<Record<string, string>>;
      name: z.ZodOptional<z.ZodString>;
      parameters: z.ZodType;
      is_enabled: z.ZodDefault<z.ZodBoolean>;
    }>,
  ],
);

/**
 * One guardrail of a config, in either form. Strict: unknown checks, members and parameters are refused. What only its
 * evaluation can tell (a pattern that does not compile, a schema too deep) is reported by libs/calls/protect/guardrails
 * when a config is stored or first used.
 */
export const GuardrailInput = z
  .strictObject({
    type: z.enum(['guardrail']).optional(),
    id: text({ min: 1, max: 200 }).optional(),
    name: text({ min: 1, max: 200 }).optional(),
    checks: z.array(LongCheck).min(1).max(guardrailLimits.checksMax).optional(),
    deny: z.boolean().default(false),
    async: z.boolean().default(false),
    on_success: Outcome.optional(),
    on_fail: Outcome.optional(),
    ...bothNames,
  })
  .transform((given): Guardrail => {
    const { id, name, deny, async, on_success: onSuccess, on_fail: onFail, checks: long, ...rest } = given;
    const found: { id: string; parameters: unknown }[] = (long ?? []).filter((check) => check.is_enabled);
    for (const [member, parameters] of Object.entries(rest)) {
      if (member !== 'type' && parameters !== undefined) found.push({ id: member, parameters });
    }
    return {
      id: id ?? null,
      name: name ?? null,
      deny,
      async,
      onSuccess: onSuccess?.feedback ?? null,
      onFail: onFail?.feedback ?? null,
      checks: found.map((check) => {
        const short = check.id.replace(/^default\./, '');
        return { name: short, id: `default.${short}`, parameters: check.parameters } as GuardrailCheck;
      }),
    };
  })
  .check((context) => {
    if (context.value.checks.length > 0 && context.value.checks.length <= guardrailLimits.checksMax) return;
    const none = context.value.checks.length === 0;
    addBreach(context, {
      path: ['checks'],
      code: none ? 'missing_required_parameter' : 'array_above_max_length',
      text: (name) =>
        none
          ? `Missing required parameter: ${name()}. A guardrail has at least one check: ${names.join(', ')}.`
          : `Invalid ${name()}: expected at most ${guardrailLimits.checksMax} checks.`,
    });
  });

/** `input_guardrails`, `output_guardrails`, `before_request_hooks` and `after_request_hooks` of a config. */
export const GuardrailList = z.array(GuardrailInput).max(guardrailLimits.guardrailsMax);

/** Header names and values as JSON text, Portkey's form. What is no JSON object fails the schema behind it. */
function parseHeaders(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return json;
  }
}
