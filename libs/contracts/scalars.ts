import { z } from 'zod';
import type { Breach } from './calls/describe-issue.ts';

// zod's issues do not contain whether a number was meant to be whole, so the message passes that to describe-issue.ts.
/** A whole number between the bounds, both allowed. */
export const integer = (bounds: { min?: number; max?: number } = {}) => {
  let schema = z.int('integer');
  if (bounds.min !== undefined) schema = schema.min(bounds.min, 'integer');
  if (bounds.max !== undefined) schema = schema.max(bounds.max, 'integer');
  return schema;
};

/** A number between the bounds, both allowed. */
export const decimal = (min: number, max: number) => z.number('decimal').min(min, 'decimal').max(max, 'decimal');

/** A 64-bit whole number. JSON numbers are doubles here, so ±2^63 itself is accepted (CALL-3). */
export const int64 = () =>
  z
    .number('integer')
    .min(-(2 ** 63), 'integer')
    .max(2 ** 63, 'integer')
    .multipleOf(1)
    .meta({ type: 'integer', format: 'int64' });

/** An object whose members the API reference leaves open. */
export const anyObject = () => z.looseObject({});

/**
 * A value that a schema must accept, and that is returned exactly as it was given: for documents that are stored as
 * their authors wrote them.
 */
export const asGiven = <Schema extends z.ZodType>(schema: Schema) =>
  z
    .custom<z.input<Schema>>()
    .check((context) => {
      const result = schema.safeParse(context.value);
      if (result.success) return;
      for (const issue of result.error.issues) context.issues.push({ ...issue, input: context.value } as never);
    })
    .meta(z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' }) as Record<string, unknown>);

/** Records a broken rule on a value that a schema is checking; see Breach. */
export function addBreach(context: z.core.ParsePayload, breach: Breach): void {
  context.issues.push({ code: 'custom', params: breach, path: [], input: context.value, message: breach.code });
}

/** Whether a string can be stored in jsonb and in a text column: it has no lone surrogates and no U+0000 (TEXT-1). */
export function isStorable(text: string): boolean {
  return text.isWellFormed() && !text.includes('\0');
}

const notStorable: Breach = {
  path: [],
  code: 'invalid_value',
  text: (name) => `Invalid ${name()}: expected well-formed Unicode text without the character U+0000.`,
};

/** Length as people and Postgres count it, in code points. */
function codePoints(text: string): number {
  let length = 0;
  for (const _ of text) length += 1;
  return length;
}

/** A text that will be stored: `min` to `max` code points, well-formed, without U+0000. */
export const text = (bounds: { min?: number; max: number }) =>
  z
    .string()
    .min(bounds.min ?? 0)
    .check((context) => {
      if (isLongerThan(context.value, bounds.max)) addBreach(context, tooLong(context.value, bounds.max));
      else if (!isStorable(context.value)) addBreach(context, notStorable);
    })
    .meta({ maxLength: bounds.max });

const isLongerThan = (text: string, max: number): boolean => text.length > max && codePoints(text) > max;

const tooLong = (text: string, max: number): Breach => ({
  path: [],
  code: 'string_above_max_length',
  text: (name) =>
    `Invalid ${name()}: string too long. Expected a string with maximum length ${max}, but got a string with length ${codePoints(text)} instead.`,
});

const pairsMax = 16;
const keyLengthMax = 64;
const valueLengthMax = 512;

/** Metadata of batches and keys: at most 16 pairs, keys to 64 and values to 512 characters (BATCH-10). */
export const metadata = () =>
  z
    .record(z.string(), z.string())
    .check((context) => {
      const breach = metadataBreach(context.value);
      if (breach !== null) addBreach(context, breach);
    })
    .meta({
      maxProperties: pairsMax,
      propertyNames: { maxLength: keyLengthMax },
      additionalProperties: { type: 'string', maxLength: valueLengthMax },
    });

/** A value of metadata as it is matched and logged: a text unchanged, anything else as its JSON text. */
export const metadataText = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value));

/**
 * Metadata whose values can be any JSON. It is stored exactly as it is given; the limits apply to the texts of its
 * values.
 */
export const anyMetadata = () =>
  z
    .record(z.string(), z.unknown())
    .check((context) => {
      const texts = Object.entries(context.value).map(([key, value]) => [key, metadataText(value)] as const);
      const breach = metadataBreach(Object.fromEntries(texts)) ?? nestedBreach(context.value);
      if (breach !== null) addBreach(context, breach);
    })
    .meta({ maxProperties: pairsMax, propertyNames: { maxLength: keyLengthMax } });

/**
 * The metadata of a request without names that only the server sets, such as `_user`: budgets and analytics rely on them.
 * They are ignored instead of refused, because clients written for Portkey send them.
 */
export const withoutReserved = (metadata: object): Record<string, unknown> =>
  Object.fromEntries(Object.entries(metadata).filter(([name]) => !name.startsWith('_')));

/** Metadata of calls as their clients send it. */
export const callMetadata = () =>
  z.preprocess(
    (value) => (typeof value === 'object' && value !== null && !Array.isArray(value) ? withoutReserved(value) : value),
    anyMetadata(),
  );

/** In JSON text, characters that cannot be stored are escaped. */
function nestedBreach(value: Record<string, unknown>): Breach | null {
  const found = Object.entries(value).find(
    ([, entry]) => typeof entry !== 'string' && /\\u(?:0000|d[89a-f])/i.test(metadataText(entry)),
  );
  return found === undefined ? null : { ...notStorable, path: [found[0]] };
}

function metadataBreach(value: Record<string, string>): Breach | null {
  const pairs = Object.entries(value);
  if (pairs.length > pairsMax) {
    return {
      path: [],
      code: 'object_above_max_properties',
      text: (name) =>
        `Invalid ${name()}: too many properties. Expected an object with at most ${pairsMax} properties, but got an object with ${pairs.length} properties instead.`,
    };
  }
  for (const [key, entry] of pairs) {
    // For an invalid key, the whole object is named, because the key itself might not be suitable for display.
    if (isLongerThan(key, keyLengthMax)) {
      return {
        path: [],
        code: 'string_above_max_length',
        text: (name) =>
          `Invalid key in ${name()}: string too long. Expected keys with maximum length ${keyLengthMax}, but got a key with length ${codePoints(key)} instead.`,
      };
    }
    if (!isStorable(key)) return notStorable;
    if (isLongerThan(entry, valueLengthMax)) return { ...tooLong(entry, valueLengthMax), path: [key] };
    if (!isStorable(entry)) return { ...notStorable, path: [key] };
  }
  return null;
}

/** An integer in a header: its decimal digits, nine at most. */
export const integerText = (limits: { min: number; max: number }) =>
  z
    .string()
    .transform((text, context) => {
      if (/^\d{1,9}$/.test(text)) return Number(text);
      addBreach(context, {
        path: [],
        code: 'invalid_value',
        text: (name) => `Invalid ${name()}: expected a whole number from ${limits.min} to ${limits.max}.`,
      });
      return z.NEVER;
    })
    .pipe(integer(limits));
