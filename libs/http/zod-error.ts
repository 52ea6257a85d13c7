import type { ZodError, ZodType, z } from 'zod';
import { GatewayError } from '#libs/kernel/errors.ts';

type Issue = ZodError['issues'][number];
type Path = readonly PropertyKey[];

/**
 * Checks a value from outside and returns what the schema makes of it. Throws invalid_request with the words, code and
 * param of `fromZodError`. Better than `schema.parse`: it can tell an absent enum from a wrong one.
 */
export function parseInput<Schema extends ZodType>(schema: Schema, value: unknown): z.output<Schema> {
  const result = schema.safeParse(value, { reportInput: true });
  if (result.success) return result.data;
  throw fromZodError(result.error);
}

/**
 * The first problem of a zod check in the words and codes of the OpenAI API (openai-semantics.md 1.5 and 4.1), with
 * the path as `param`, for example `messages[0].content`.
 */
export function fromZodError(error: ZodError): GatewayError {
  const issue = error.issues[0];
  if (issue === undefined) return new GatewayError('invalid_request', 'invalid_value', 'The request is not valid.');
  const { code, message, path } = describe(issue, []);
  return new GatewayError('invalid_request', code, message, { param: path.length === 0 ? null : toParam(path) });
}

type Problem = { code: string; message: string; path: Path };

function describe(issue: Issue, prefix: Path): Problem {
  const path = [...prefix, ...issue.path];
  const name = path.length === 0 ? 'the request body' : `'${toParam(path)}'`;
  switch (issue.code) {
    case 'invalid_type': {
      const received = receivedType(issue.message);
      if (received === 'undefined' && path.length > 0) {
        return { code: 'missing_required_parameter', message: `Missing required parameter: ${name}.`, path };
      }
      const message = `Invalid type for ${name}: expected ${withArticle(issue.expected)}, but got ${withArticle(received)} instead.`;
      return { code: 'invalid_type', message, path };
    }
    case 'unrecognized_keys': {
      const unknown = [...path, issue.keys[0] ?? ''];
      return { code: 'unknown_parameter', message: `Unknown parameter: '${toParam(unknown)}'.`, path: unknown };
    }
    case 'invalid_value': {
      const allowed = issue.values
        .map((value) => (typeof value === 'string' ? `'${value}'` : String(value)))
        .join(', ');
      if ('input' in issue && issue.input === undefined && path.length > 0) {
        return { code: 'missing_required_parameter', message: `Missing required parameter: ${name}.`, path };
      }
      const given = typeof issue.input === 'string' ? `: '${issue.input.slice(0, 100)}'` : ` for ${name}`;
      return { code: 'invalid_value', message: `Invalid value${given}. Supported values are: ${allowed}.`, path };
    }
    case 'too_small':
    case 'too_big':
      return { ...bound(issue, name), path };
    case 'invalid_union': {
      const branches = issue.errors.map((issues) => issues[0]).filter((first) => first !== undefined);
      // The branch that got furthest into the value is the one that the caller meant.
      const best = branches.toSorted((a, b) => b.path.length - a.path.length)[0];
      if (best !== undefined && (best.path.length > 0 || branches.length === 1)) return describe(best, path);
      return { code: 'invalid_value', message: `Invalid value for ${name}: it has none of the allowed forms.`, path };
    }
    case 'invalid_format':
    case 'not_multiple_of':
    case 'invalid_key':
    case 'invalid_element':
    case 'custom':
      return {
        code: 'invalid_value',
        message: `Invalid value for ${name}: ${issue.message}.`.replace(/\.\.$/, '.'),
        path,
      };
  }
}

type Bound = Extract<Issue, { code: 'too_small' | 'too_big' }>;

function bound(issue: Bound, name: string): { code: string; message: string } {
  const isBelow = issue.code === 'too_small';
  const limit = String(isBelow ? issue.minimum : issue.maximum);
  const word = isBelow
    ? issue.inclusive === false
      ? 'more than'
      : 'at least'
    : issue.inclusive === false
      ? 'less than'
      : 'at most';
  if (issue.origin === 'string') {
    const code = isBelow ? 'string_below_min_length' : 'string_above_max_length';
    return { code, message: `Invalid ${name}: expected a string of ${word} ${limit} characters.` };
  }
  if (issue.origin === 'array' || issue.origin === 'set') {
    const code = isBelow ? 'array_below_min_length' : 'array_above_max_length';
    return { code, message: `Invalid ${name}: expected an array of ${word} ${limit} items.` };
  }
  const isWhole = issue.origin === 'int' || issue.origin === 'bigint' || Number.isInteger(issue.input);
  const code = `${isWhole ? 'integer' : 'decimal'}_${isBelow ? 'below_min' : 'above_max'}_value`;
  return { code, message: `Invalid ${name}: expected a value of ${word} ${limit}.` };
}

function toParam(path: Path): string {
  let text = '';
  for (const step of path) text += typeof step === 'number' ? `[${step}]` : `${text === '' ? '' : '.'}${String(step)}`;
  return text.slice(0, 256);
}

// zod's issues do not hold the value (it may be a secret); its message names the type that it got.
function receivedType(message: string): string {
  return /received (\w+)$/.exec(message)?.[1] ?? 'another type';
}

function withArticle(type: string): string {
  if (type === 'null' || type === 'undefined' || type.startsWith('another')) return type;
  const plain = type === 'int' ? 'integer' : type === 'record' ? 'object' : type;
  return `${/^[aeiou]/.test(plain) ? 'an' : 'a'} ${plain}`;
}
