import { hash } from 'node:crypto';
import { Ajv, type Options, type ValidateFunction } from 'ajv';
import { Ajv2020 } from 'ajv/dist/2020.js';
import { LRUCache } from 'lru-cache';
import type { Problem } from '#libs/contracts/calls/describe-issue.ts';
import { finishesInTime } from '#libs/threads/run-within.ts';

export type SchemaLimits = {
  /** The maximum size of a schema as JSON. */
  schemaBytesMax: number;
  /** How long one schema can take to compile. */
  schemaTimeoutMs: number;
  /** The check runs on the event loop, where no schema is compiled. */
  onLoop?: boolean;
};

/** The lines have a schema, and have to be checked in a thread. */
export class SchemaNeedsThread extends Error {}

/** `timedOut` is part of the verdict because a file can only have a few schemas that time out. */
export type SchemaVerdict = { problem: Problem | null; timedOut: boolean };

const param = 'body.response_format';
const fine: SchemaVerdict = { problem: null, timedOut: false };
const refused = (message: string, timedOut = false): SchemaVerdict => ({
  problem: { code: 'invalid_request', param, message },
  timedOut,
});

// `allErrors` keeps the generated code flat (nested code for 2,000 properties overflows the stack). References are
// compiled once instead of inlined, so that a large definition used a thousand times is not a thousand times as large.
// Without a loader, a reference to another document is an error, never a fetch (SEC-6).
const ajvOptions: Options = {
  strict: false,
  allErrors: true,
  inlineRefs: false,
  validateFormats: false,
  unicodeRegExp: false,
  logger: false,
};

const verdictsMax = 4_096;
// Ajv never frees the code and names of compiled schemas. A new pair at intervals limits the thread's memory.
const compilesPerPair = 200;

type Compilers = { draft7: Ajv; draft2020: Ajv; compiled: number };

let shared: Compilers | undefined;
const verdicts = new LRUCache<string, SchemaVerdict>({ max: verdictsMax });

function createCompilers(): Compilers {
  const compilers = { draft7: new Ajv(ajvOptions), draft2020: new Ajv2020(ajvOptions), compiled: 0 };
  // The first use compiles the meta-schema, which must not count towards a user's time.
  compilers.draft7.compile({});
  compilers.draft2020.compile({});
  return compilers;
}

/** Ajv registers the IDs and anchors in a schema permanently. A schema that has any gets a separate pair. */
function compilersFor(text: string): Compilers {
  if (/"\$(?:id|anchor|dynamicAnchor)"/.test(text)) return createCompilers();
  if (shared === undefined || shared.compiled >= compilesPerPair) shared = createCompilers();
  shared.compiled += 1;
  return shared;
}

/** Which draft a schema follows, and the schema without the members that would change how it is compiled. */
function readDraft(schema: object): { draft: 'draft7' | 'draft2020'; rest: object } {
  const { $schema: named, $async: _, ...rest } = schema as { $schema?: unknown; $async?: unknown };
  return { draft: typeof named === 'string' && /draft-0[4-7]/.test(named) ? 'draft7' : 'draft2020', rest };
}

/**
 * Returns a function that validates values. Throws for a schema that does not compile. Its compiler is its own, so that
 * all that was compiled is freed with it. Limit its time: see `finishesInTime`.
 */
export function createValidator(schema: object): ValidateFunction {
  const { draft, rest } = readDraft(schema);
  void compilersFor('')[draft].validateSchema(rest, true);
  const options = { ...ajvOptions, meta: false, validateSchema: false, ownProperties: true };
  return (draft === 'draft7' ? new Ajv(options) : new Ajv2020(options)).compile(rest);
}

function compile(schema: object, compilers: Compilers): void {
  const { draft, rest } = readDraft(schema);
  const compiler = compilers[draft];
  // A compiler that is stopped could be in an inconsistent state. `finally` does not run in that case.
  const kept = shared;
  shared = undefined;
  try {
    compiler.compile(rest);
  } finally {
    compiler.removeSchema(rest);
    shared = kept;
  }
}

function judge(schema: object, text: string, limits: SchemaLimits): SchemaVerdict {
  try {
    const prepare = () => {
      const compilers = compilersFor(text);
      return () => compile(schema, compilers);
    };
    if (finishesInTime(prepare, limits.schemaTimeoutMs)) return fine;
    return refused(
      `Invalid '${param}': its JSON Schema takes longer than ${limits.schemaTimeoutMs} ms to compile. Simplify it.`,
      true,
    );
  } catch (error) {
    if (error instanceof RangeError) return refused(`Invalid '${param}': its JSON Schema is too complex to check.`);
    const reason = error instanceof Error ? error.message : String(error);
    return refused(`Invalid '${param}': its JSON Schema does not compile: ${reason.slice(0, 300)}`);
  }
}

/**
 * Checks that `response_format.json_schema.schema` of a body is a JSON Schema that compiles (draft 2020-12, or draft 7
 * if `$schema` names draft 4 to 7), is not too large, and contains no external references. Compiling runs a code generator
 * on the user's schema, so SchemaNeedsThread is thrown instead on the event loop. Verdicts are cached by the schema's hash.
 */
export function checkResponseSchema(body: object, limits: SchemaLimits): SchemaVerdict {
  const format = (body as { response_format?: { json_schema?: { schema?: unknown } } | null }).response_format;
  const schema = format?.json_schema?.schema;
  if (typeof schema !== 'object' || schema === null) return fine;
  const text = JSON.stringify(schema);
  const sizeBytes = Buffer.byteLength(text);
  if (sizeBytes > limits.schemaBytesMax) {
    return refused(
      `Invalid '${param}': its JSON Schema has ${sizeBytes} bytes. Expected at most ${limits.schemaBytesMax} bytes.`,
    );
  }
  const key = hash('sha256', text, 'base64');
  const known = verdicts.get(key);
  if (known !== undefined) return known;
  if (limits.onLoop === true) throw new SchemaNeedsThread();
  const verdict = judge(schema, text, limits);
  verdicts.set(key, verdict);
  return verdict;
}
