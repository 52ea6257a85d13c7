import { z } from 'zod';
import { guardrailChecks, guardrailLimits, type GuardrailCheck, type GuardrailCheckName } from './guardrail-checks.ts';
import { addBreach, anyObject, asGiven, integer, text } from '../scalars.ts';

// Guardrails of a config (CONF-5): a list of guardrails, each with one check or more, in the long form of
// before_request_hooks ({"type":"guardrail","checks":[{"id":"default.contains","parameters":{…}}]}) or in the short
// form, where checks are members by their names ({"default.contains":{…},"deny":true}); `default.` can be left out.

const StreamMode = z.enum(['hold', 'annotate']);
type StreamMode = z.output<typeof StreamMode>;

export type Guardrail = {
  /** As given; null: results name it by its position. */
  id: string | null;
  /** The stored guardrail; null for one that is part of a config. */
  record: { id: string; slug: string; version: number } | null;
  name: string | null;
  /** A failed check refuses the call (446); otherwise it is only reported (246). */
  deny: boolean;
  /** Runs alongside the call and has no effect on it. */
  async: boolean;
  /**
   * How output guardrails check a stream. `hold`: the whole stream before its first word is sent. `annotate`: after it
   * has been sent, with the results in its last event.
   */
  streamMode: StreamMode;
  /** Portkey's feedback, repeated in the results. */
  onSuccess: Feedback | null;
  onFail: Feedback | null;
  checks: readonly GuardrailCheck[];
};

/** Names a stored guardrail (libs/resources/guardrails.ts) by its slug or ID. */
export type GuardrailReference = { stored: string };

/** An entry in the lists of a config. References are replaced before a call by the stored guardrail of that time. */
export type GuardrailEntry = Guardrail | GuardrailReference;

export const isReference = (entry: GuardrailEntry): entry is GuardrailReference => 'stored' in entry;

const Feedback = z.strictObject({
  value: integer({ min: -10, max: 10 }).optional(),
  weight: z.number().min(0).max(1).optional(),
  metadata: z.union([z.record(z.string().max(64), z.string().max(512)), z.string().max(2_048)]).optional(),
});
type Feedback = z.output<typeof Feedback>;
const Outcome = z.strictObject({ feedback: Feedback.optional() });

const names = Object.keys(guardrailChecks) as GuardrailCheckName[];

const bothNames = Object.fromEntries(
  names.flatMap((name) => [
    [name, guardrailChecks[name].optional()],
    [`default.${name}`, guardrailChecks[name].optional()],
  ]),
) as { [Name in GuardrailCheckName as Name | `default.${Name}`]: z.ZodOptional<(typeof guardrailChecks)[Name]> };

const LongCheck = z.discriminatedUnion(
  'id',
  names.map((name) =>
    z.strictObject({
      id: z.enum([name, `default.${name}`]),
      name: text({ max: 200 }).optional(),
      // If all parameters of a check have defaults, they can be left out.
      parameters: (guardrailChecks[name] as z.ZodType<object, object>).prefault({}),
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

const members = {
  type: z.enum(['guardrail']).optional(),
  id: text({ min: 1, max: 200 }).optional(),
  name: text({ min: 1, max: 200 }).optional(),
  checks: z.array(LongCheck).min(1).max(guardrailLimits.checksMax).optional(),
  deny: z.boolean().optional(),
  async: z.boolean().optional(),
  stream_mode: StreamMode.optional(),
  allow_media: z.boolean().optional(),
  on_success: Outcome.optional(),
  on_fail: Outcome.optional(),
  ...bothNames,
};
type Given = z.output<z.ZodObject<typeof members>>;

function toGuardrail(given: Given): Guardrail {
  const {
    id,
    name,
    deny = false,
    async = false,
    allow_media: allowsMedia = false,
    on_success: onSuccess,
    on_fail: onFail,
    checks: long,
    ...more
  } = given;
  const { stream_mode: streamMode = deny && !async ? 'hold' : 'annotate', ...rest } = more;
  const found: { id: string; name?: string | undefined; parameters: unknown }[] = (long ?? []).filter(
    (check) => check.is_enabled,
  );
  for (const [member, parameters] of Object.entries(rest)) {
    if (member !== 'type' && parameters !== undefined) found.push({ id: member, parameters });
  }
  return {
    id: id ?? null,
    record: null,
    name: name ?? null,
    deny,
    async,
    streamMode,
    onSuccess: onSuccess?.feedback ?? null,
    onFail: onFail?.feedback ?? null,
    checks: found.map((check) => {
      const short = check.id.replace(/^default\./, '');
      const { name: label = null, parameters } = check;
      return { name: short, id: `default.${short}`, label, allowsMedia, parameters } as GuardrailCheck;
    }),
  };
}

type Modes = { deny?: boolean | undefined; async?: boolean | undefined; stream_mode?: StreamMode | undefined };

/**
 * An answer that was sent can no longer be denied, and the call need not wait for guardrails that have no effect on it.
 */
function checkStreamMode(context: z.core.ParsePayload<Modes>): void {
  const { deny = false, async = false, stream_mode: mode } = context.value;
  const decides = deny && !async;
  if (mode === undefined || (mode === 'annotate' ? !decides : !async)) return;
  addBreach(context, {
    path: ['stream_mode'],
    code: 'invalid_value',
    text: (name) =>
      decides
        ? `Invalid ${name()}: a guardrail with ${name('deny')} always holds a stream until it is checked. Leave it out, or set ${name('deny')} to false.`
        : `Invalid ${name()}: a guardrail with ${name('async')} only reports, so it never holds a stream. Leave it out.`,
  });
}

/** Portkey's older form of a reference is an object that has only the ID. */
const isName = (given: object): given is { id: string } =>
  'id' in given && Object.keys(given).every((key) => key === 'id' || key === 'type');

/**
 * One guardrail of a config, in either form, or the name of a stored one. Strict: unknown checks, members and
 * parameters are refused. Problems that only its evaluation can find (a pattern that does not compile, a schema too
 * deep) are reported by libs/calls/protect/guardrails when a config is stored or first used.
 * @testOnly
 */
export const GuardrailInput = z.union([
  text({ min: 1, max: 200 }).transform((stored): GuardrailEntry => ({ stored })),
  z
    .strictObject(members)
    .check(checkStreamMode)
    .transform((given): GuardrailEntry => (isName(given) ? { stored: given.id } : toGuardrail(given)))
    .check((context) => {
      if (isReference(context.value)) return;
      const count = context.value.checks.length;
      if (count > 0 && count <= guardrailLimits.checksMax) return;
      addBreach(context, {
        path: ['checks'],
        code: count === 0 ? 'missing_required_parameter' : 'array_above_max_length',
        text: (name) =>
          count === 0
            ? `Missing required parameter: ${name()}. A guardrail needs at least one check. Available checks: ${names.join(', ')}.`
            : `Invalid ${name()}: expected at most ${guardrailLimits.checksMax} checks.`,
      });
    }),
]);

/** `input_guardrails`, `output_guardrails`, `before_request_hooks` and `after_request_hooks` of a config. */
export const GuardrailList = z.array(GuardrailInput).max(guardrailLimits.guardrailsMax);

const Actions = z
  .strictObject({
    deny: z.boolean().optional(),
    async: z.boolean().optional(),
    stream_mode: StreamMode.optional(),
    allow_media: z.boolean().optional(),
    on_success: Outcome.optional(),
    on_fail: Outcome.optional(),
  })
  .check(checkStreamMode);

/** Members of the body of POST /guardrails. Both documents are stored exactly as they are given. */
export const guardrailFields = {
  name: text({ min: 1, max: 200 }),
  checks: asGiven(z.array(LongCheck).min(1).max(guardrailLimits.checksMax)),
  actions: asGiven(Actions).default({}),
};

export type GuardrailDocument = { checks: z.input<typeof LongCheck>[]; actions: z.input<typeof Actions> };

/** Converts a stored guardrail; it has no check when all are disabled. null: another release stored it. */
export function toStoredGuardrail(
  { name, ...record }: NonNullable<Guardrail['record']> & { name: string },
  { checks, actions }: GuardrailDocument,
): Guardrail | null {
  const result = z.strictObject(members).safeParse({ id: record.slug, name, checks, ...actions });
  return result.success ? { ...toGuardrail(result.data), record } : null;
}

/** A guardrail as it is listed and retrieved; secrets of webhooks are left out. */
export const GuardrailObject = z.object({
  id: z.string(),
  object: z.literal('guardrail'),
  slug: z.string(),
  name: z.string(),
  organisation_id: z.string(),
  workspace_id: z.string().nullable(),
  status: z.enum(['active', 'archived']),
  version: z.int(),
  version_id: z.string(),
  checks: z.array(anyObject()),
  actions: anyObject(),
  owner_id: z.string().nullable(),
  updated_by: z.string().nullable(),
  created_at: z.string(),
  last_updated_at: z.string(),
});
