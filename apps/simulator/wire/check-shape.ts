import type { z } from 'zod';

/** A problem with a request, without a provider's wording. `path` is the path of the value, or of the missing member. */
export type Flaw = { kind: 'missing' | 'unknown' | 'invalid'; path: readonly (string | number)[]; message: string };

type Issue = z.core.$ZodIssue;

/** Returns the parsed value. If there is a problem, `refuse` gets the first one and throws with the provider's wording. */
export function checkShape<Schema extends z.ZodType>(
  schema: Schema,
  value: unknown,
  refuse: (flaw: Flaw) => never,
): z.output<Schema> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const [issue] = result.error.issues;
  return refuse(issue === undefined ? { kind: 'invalid', path: [], message: 'Invalid input' } : flawOf(issue, []));
}

function flawOf(issue: Issue, before: readonly (string | number)[]): Flaw {
  const path = [...before, ...issue.path.map((step) => (typeof step === 'symbol' ? String(step) : step))];
  if (issue.code === 'unrecognized_keys') {
    return { kind: 'unknown', path: [...path, issue.keys[0] ?? ''], message: issue.message };
  }
  if (issue.code === 'invalid_union') {
    // The branch that matched furthest is the intended one.
    const branches = issue.errors.flatMap((branch) => branch.slice(0, 1).map((inner) => flawOf(inner, path)));
    const [meant] = branches.sort((a, b) => b.path.length - a.path.length);
    if (meant !== undefined) return meant;
  }
  const missing = issue.code === 'invalid_type' && issue.message.endsWith('received undefined');
  return { kind: missing ? 'missing' : 'invalid', path, message: issue.message };
}
