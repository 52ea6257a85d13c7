import { z } from 'zod';
import { GatewayError } from '#libs/kernel/errors.ts';
import { describeBreach, describeIssue, type Problem } from './calls/describe-issue.ts';

/**
 * Checks a value against a schema without throwing. Returns the schema's output, or the first problem in OpenAI's words
 * (`code`, `message`, `param`). `at` is put before every param: with `at: 'body'` a problem of `model` names
 * `body.model`, as the lines of a batch file do. `whole` is the value that the problem describes, if `value` is a part
 * of it.
 */
export function tryParse<Schema extends z.ZodType>(
  schema: Schema,
  value: unknown,
  at = '',
  whole: unknown = value,
): { ok: true; value: z.output<Schema> } | { ok: false; problem: Problem } {
  const result = schema.safeParse(value);
  if (result.success) return { ok: true, value: result.data };
  const issue = result.error.issues[0];
  if (issue === undefined) throw new Error('zod refused a value without an issue');
  return { ok: false, problem: describeIssue(issue, whole, at) };
}

/**
 * Parses a request's body, query or path parameters.
 * Throws GatewayError `invalid_request` with OpenAI's code, message and param of the first problem
 * (ERR-2).
 */
export function parseWith<Schema extends z.ZodType>(schema: Schema, value: unknown): z.output<Schema> {
  const result = tryParse(schema, value);
  if (result.ok) return result.value;
  const { code, message, param } = result.problem;
  throw new GatewayError('invalid_request', code, message, { param });
}

/**
 * Refuses a member named `__proto__` at any depth, because zod silently leaves it out of its result. For values that
 * are stored or used as parsed. A live body is forwarded as its own bytes, in which the member stays. `at` as in
 * tryParse. The depth of `value` must be bounded. Throws GatewayError `invalid_request`.
 */
export function refuseProtoMembers(value: unknown, at = ''): void {
  const path = findLostName(value);
  if (path === null) return;
  const text = (name: () => string): string =>
    `Invalid ${name()}: the name '__proto__' is not allowed. Choose another name.`;
  const { code, message, param } = describeBreach({ path, code: 'invalid_value', text }, at);
  throw new GatewayError('invalid_request', code, message, { param });
}

function findLostName(value: unknown): PropertyKey[] | null {
  if (typeof value !== 'object' || value === null) return null;
  if (Object.hasOwn(value, '__proto__')) return ['__proto__'];
  for (const [key, member] of Array.isArray(value) ? value.entries() : Object.entries(value)) {
    const path = findLostName(member);
    if (path !== null) return [key, ...path];
  }
  return null;
}
