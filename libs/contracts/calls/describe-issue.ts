import type { z } from 'zod';

/** The problem of a value, in OpenAI's vocabulary; `param` is a path such as `messages[0].role`, or null. */
export type Problem = { code: string; message: string; param: string | null };

/**
 * A broken rule that one field alone cannot express, or whose message differs from the usual ones. `text` gets a
 * function that quotes the parameter's name, or a sibling's, because the same rule refers to `stream_options` in a live
 * call and to `body.stream_options` in a batch line.
 */
export type Breach = { path: PropertyKey[]; code: string; text: (name: (sibling?: string) => string) => string };

type Issue = z.core.$ZodIssue;

/** Converts the issue that zod found in `value` to OpenAI's code, message and param. Pure. */
export function describeIssue(issue: Issue, value: unknown, at = ''): Problem {
  const problem = problemsAt(at);
  const { path } = issue;
  const received = valueAt(value, path);
  switch (issue.code) {
    case 'custom': {
      const breach = issue.params as Breach | undefined;
      return breach === undefined
        ? problem(path, 'invalid_value', (name) => `Invalid value for ${name}: ${issue.message}.`)
        : describeBreach({ ...breach, path: [...path, ...breach.path] }, at);
    }
    case 'unrecognized_keys':
      return problem([...path, issue.keys[0] ?? ''], 'unknown_parameter', (name) => `Unknown parameter: ${name}.`);
    case 'invalid_union':
      return describeUnion(issue, value, at);
    case 'invalid_type':
      return describeType(path, received, expectedKind(issue), problem);
    case 'invalid_value':
      if (received === undefined || typeof received !== typeof issue.values[0])
        return describeType(path, received, `one of ${listValues(issue.values)}`, problem);
      return problem(
        path,
        'invalid_value',
        () => `Invalid value: ${quote(received)}. Supported values are: ${listValues(issue.values)}.`,
      );
    case 'too_small':
    case 'too_big':
      return describeSize(issue, received, problem);
    case 'not_multiple_of':
      return describeType(path, received, 'an integer', problem);
    case 'invalid_format':
      return problem(path, 'invalid_value', (name) =>
        issue.format === 'regex'
          ? `Invalid ${name}: string does not match pattern. Expected a string that matches the pattern '${trimPattern(issue.pattern)}'.`
          : `Invalid ${name}: expected ${formatNames[issue.format] ?? `a string in the form '${issue.format}'`}.`,
      );
    case 'invalid_key':
    case 'invalid_element':
      return problem(path, 'invalid_value', (name) => `Invalid ${name}: ${issue.issues[0]?.message ?? issue.message}.`);
    default:
      return issue satisfies never;
  }
}

/** The problem of a broken rule; `at` as in tryParse. */
export function describeBreach(breach: Breach, at = ''): Problem {
  const name = (sibling?: string): string =>
    quoteParam(formatPath(sibling === undefined ? breach.path : [...breach.path.slice(0, -1), sibling], at));
  const param = formatPath(breach.path, at);
  return { code: breach.code, message: breach.text(name), param: param === '' ? null : param };
}

type Describe = (path: PropertyKey[], code: string, text: (quoted: string) => string) => Problem;

function problemsAt(at: string): Describe {
  return (path, code, text) => {
    const param = formatPath(path, at);
    return { code, message: text(quoteParam(param)), param: param === '' ? null : param };
  };
}

const quoteParam = (param: string): string => (param === '' ? 'the request body' : `'${param}'`);

function describeType(path: PropertyKey[], received: unknown, expected: string, problem: Describe): Problem {
  if (received === undefined)
    return problem(path, 'missing_required_parameter', (name) => `Missing required parameter: ${name}.`);
  return problem(
    path,
    'invalid_type',
    (name) => `Invalid type for ${name}: expected ${expected}, but got ${kindOf(received)} instead.`,
  );
}

/** Describes the branch of a union that the value was probably meant for: the one of its type. */
function describeUnion(issue: Extract<Issue, { code: 'invalid_union' }>, value: unknown, at: string): Problem {
  const received = valueAt(value, issue.path);
  const problem = problemsAt(at);
  if (issue.errors.length === 0 && 'options' in issue) {
    const options = issue.options ?? [];
    if (typeof received !== 'string')
      return describeType(issue.path, received, `one of ${listValues(options)}`, problem);
    return problem(
      issue.path,
      'invalid_value',
      () => `Invalid value: ${quote(received)}. Supported values are: ${listValues(options)}.`,
    );
  }
  const firsts = issue.errors.flatMap((branch) => branch[0] ?? []);
  const inside =
    firsts.find((first) => first.path.length > 0) ??
    firsts.find(
      (first) => first.code !== 'invalid_type' && (first.code !== 'invalid_value' || typeof received === 'string'),
    );
  if (inside !== undefined && received !== undefined)
    return describeIssue({ ...inside, path: [...issue.path, ...inside.path] }, value, at);
  const kinds = firsts.map((first) => (first.code === 'invalid_type' ? expectedKind(first) : 'a string'));
  return describeType(issue.path, received, [...new Set(kinds)].join(' or '), problem);
}

function describeSize(
  issue: Extract<Issue, { code: 'too_small' | 'too_big' }>,
  received: unknown,
  problem: Describe,
): Problem {
  const { path, origin } = issue;
  const small = issue.code === 'too_small';
  const bound = Number(issue.code === 'too_small' ? issue.minimum : issue.maximum);
  if (origin === 'string' || origin === 'array') {
    const length = (received as string | unknown[]).length;
    if (small && length === 0 && bound === 1)
      return problem(
        path,
        `empty_${origin}`,
        (name) =>
          `Invalid ${name}: empty ${origin}. Expected ${article(origin)} with minimum length 1, but got an empty ${origin} instead.`,
      );
    const word = small ? 'short' : 'long';
    return problem(
      path,
      `${origin}_${small ? 'below_min' : 'above_max'}_length`,
      (name) =>
        `Invalid ${name}: ${origin} too ${word}. Expected ${article(origin)} with ${small ? 'minimum' : 'maximum'} length ${bound}, but got ${article(origin)} with length ${length} instead.`,
    );
  }
  const kind = issue.message === 'decimal' ? 'decimal' : 'integer';
  return problem(
    path,
    `${kind}_${small ? 'below_min' : 'above_max'}_value`,
    (name) =>
      `Invalid ${name}: ${kind} ${small ? 'below minimum' : 'above maximum'} value. Expected a value ${small ? '>=' : '<='} ${bound}, but got ${String(received)} instead.`,
  );
}

const formatNames: Record<string, string> = { url: 'a URL', datetime: 'an ISO 8601 date and time' };

const kindNames: Record<string, string> = {
  string: 'a string',
  boolean: 'a boolean',
  int: 'an integer',
  array: 'an array',
  object: 'an object',
  record: 'an object',
};

function expectedKind(issue: Extract<Issue, { code: 'invalid_type' }>): string {
  // The message is the marker that `integer()` and `decimal()` of scalars.ts set.
  if (issue.expected === 'number') return issue.message === 'decimal' ? 'a decimal' : 'an integer';
  return kindNames[issue.expected] ?? `a value of type ${issue.expected}`;
}

/** The kind of a JSON value, with its article: "an array", "a decimal number", "null". */
export function kindOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'an array';
  // JSON.parse reads 1e400 as Infinity, but zod accepts only finite numbers.
  if (value === Infinity || value === -Infinity) return 'a number that is too large';
  if (typeof value === 'number') return Number.isInteger(value) ? 'an integer' : 'a decimal number';
  return typeof value === 'object' ? 'an object' : `a ${typeof value}`;
}

const article = (noun: string): string => (noun === 'array' ? 'an array' : `a ${noun}`);

/** Values of users are cut, because a message must not return a megabyte. */
function quote(value: unknown): string {
  const text = String(value);
  return `'${text.length > 200 ? `${text.slice(0, 200)}…` : text}'`;
}

function listValues(values: readonly unknown[]): string {
  const quoted = values.map((value) => `'${String(value)}'`);
  const last = quoted.at(-1) ?? '';
  if (quoted.length <= 2) return quoted.join(' and ');
  return `${quoted.slice(0, -1).join(', ')}, and ${last}`;
}

const trimPattern = (pattern: string | undefined): string => (pattern ?? '').replace(/^\/(.*)\/[a-z]*$/s, '$1');

function formatPath(path: PropertyKey[], at: string): string {
  let text = at;
  for (const key of path) {
    const name = String(key);
    // A user's key (metadata, logit_bias) can be long.
    const short = name.length > 100 ? `${name.slice(0, 100)}…` : name;
    text += typeof key === 'number' ? `[${short}]` : `${text === '' ? '' : '.'}${short}`;
  }
  return text;
}

function valueAt(value: unknown, path: PropertyKey[]): unknown {
  let current = value;
  for (const key of path) {
    if (typeof current !== 'object' || current === null || !Object.hasOwn(current, key)) return undefined;
    current = (current as Record<PropertyKey, unknown>)[key];
  }
  return current;
}
