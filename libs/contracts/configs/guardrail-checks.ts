import { z } from 'zod';
import { addBreach, anyObject, integer, text } from '../scalars.ts';

/** Limits of the checks that a workspace can run on every call. */
export const guardrailLimits = {
  guardrailsMax: 20,
  checksMax: 20,
  listMax: 1_000,
  wordLengthMax: 1_000,
  /** The source of one regular expression. */
  patternLengthMax: 1_000,
  /** A JSON Schema as JSON text, and its maximum nesting. */
  schemaBytesMax: 65_536,
  schemaDepthMax: 32,
  webhookTimeoutMsMax: 30_000,
  /** How long the keys of a JWKS are used without a new request, in seconds. */
  jwksAgeMax: 604_800,
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
const asCount = (noun: 'Words' | 'Sentences' | 'Characters') => {
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
          text: (name) => `Invalid ${name()}: it is above ${name('max')}, so no text could pass.`,
        });
      }
    });
};

/** Names of request types: ours, and Portkey's. */
const requestTypes = { complete: 'completions', chatComplete: 'chat', embed: 'embeddings' } as const;
const requestType = z
  .enum([
    'chat',
    'completions',
    'embeddings',
    'messages',
    'responses',
    'generate_content',
    'complete',
    'chatComplete',
    'embed',
  ])
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

/** Only asymmetric ones: the keys of a JWKS are public, so with others anyone could sign. */
const jwtAlgorithms = [
  'RS256',
  'RS384',
  'RS512',
  'PS256',
  'PS384',
  'PS512',
  'ES256',
  'ES384',
  'ES512',
  'EdDSA',
] as const;

/** A time in seconds, or with a unit that jose understands: `1d`, `12 hours`, `90 minutes`. */
const duration = z.union([
  integer({ min: 1, max: 315_360_000 }),
  z
    .string()
    .regex(/^\d{1,9}(\.\d{1,3})? ?(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?|y|yrs?|years?)$/i),
]);

/** A claim passes when it is one of these values. */
const claimValues = z.union([
  text({ min: 1, max: 500 }),
  z
    .array(text({ min: 1, max: 500 }))
    .min(1)
    .max(20),
]);

/** The parameters of each check, by its name. */
export const guardrailChecks = {
  regexMatch: z.strictObject({ rule: text({ min: 1, max: patternLengthMax }), not }),
  contains: z.strictObject({ words: words(), operator: anyAllNone.default('any'), not }),
  wordCount: asCount('Words'),
  sentenceCount: asCount('Sentences'),
  characterCount: asCount('Characters'),
  jsonSchema: z.strictObject({ schema: anyObject(), not }),
  jsonKeys: z.strictObject({ keys: words(), operator: anyAllNone.default('any') }),
  /** Checks the syntax of a URL. With `onlyDNS`, its host must also have a public address. No URL is fetched. */
  validUrls: z.strictObject({ onlyDNS: z.boolean().default(false), not }),
  /** A fenced block of the language (`format`). */
  containsCode: z.strictObject({ format: text({ min: 1, max: 50 }), not }),
  endsWith: z.strictObject({ suffix: text({ min: 1, max: wordLengthMax }), not }),
  isAllLowerCase: z.strictObject({ not }),
  alluppercase: z.strictObject({ not }),
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
     * How a webhook that does not answer counts: true, the check failed; false, it passed. Portkey's default is false,
     * with which anyone who can make the webhook fail (by a body that it cannot read, or a flood of calls) would
     * circumvent it.
     */
    failOnError: z.boolean().default(true),
  }),
  /**
   * A token in a header of the call. `issuer` and `audience` are required to store or send one, because a key server
   * can sign tokens for many other services. One that was stored without them still checks the rest.
   */
  jwt: z.strictObject({
    jwksUri: z.url({ protocol: /^https?$/ }).max(2_048),
    issuer: claimValues.optional(),
    audience: claimValues.optional(),
    headerKey: z
      .string()
      .min(1)
      .max(100)
      .regex(/^[a-zA-Z0-9-]+$/)
      .default('Authorization'),
    cacheMaxAge: integer({ min: 0, max: guardrailLimits.jwksAgeMax }).default(86_400),
    clockTolerance: integer({ min: 0, max: 3_600 }).default(5),
    maxTokenAge: duration.default('1d'),
    algorithms: z.array(z.enum(jwtAlgorithms)).min(1).max(jwtAlgorithms.length).default(['RS256']),
    not,
  }),
};

type Checks = typeof guardrailChecks;
export type GuardrailCheckName = keyof Checks;

/** One check, with its parameters and their defaults. `id` is the name with `default.`, as results show it. */
export type GuardrailCheck = {
  [Name in GuardrailCheckName]: {
    name: Name;
    id: string;
    /** The author's name for it; null: it has none. */
    label: string | null;
    /** A setting of its guardrail: images, audio and files, which a check of texts cannot read, do not fail it. */
    allowsMedia: boolean;
    parameters: z.output<Checks[Name]>;
  };
}[GuardrailCheckName];

/** Header names and values as JSON text, Portkey's form. Anything but a JSON object fails the following schema. */
function parseHeaders(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return json;
  }
}
