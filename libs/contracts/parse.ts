import { z } from 'zod';
import { GatewayError } from '#libs/kernel/errors.ts';
import { describeIssue, type Problem } from './describe-issue.ts';

/**
 * Checks a value against a schema without throwing: the schema's output, or the first problem in OpenAI's words
 * (`code`, `message`, `param`). `at` is put before every param: with `at: 'body'` a problem of `model` names
 * `body.model`, as the lines of a batch file do.
 */
export function tryParse<Schema extends z.ZodType>(
  schema: Schema,
  value: unknown,
  at = '',
): { ok: true; value: z.output<Schema> } | { ok: false; problem: Problem } {
  const result = schema.safeParse(value);
  if (result.success) return { ok: true, value: result.data };
  const issue = result.error.issues[0];
  if (issue === undefined) throw new Error('zod refused a value without an issue');
  return { ok: false, problem: describeIssue(issue, value, at) };
}

/**
 * Parses a request's body, query or path parameters.
 * Throws GatewayError `invalid_request` with OpenAI's code, message and param of the first problem
 * (reference/openai-semantics.md 1.5 and 4.1).
 */
export function parseWith<Schema extends z.ZodType>(schema: Schema, value: unknown): z.output<Schema> {
  const result = tryParse(schema, value);
  if (result.ok) return result.value;
  const { code, message, param } = result.problem;
  throw new GatewayError('invalid_request', code, message, { param });
}
