import type { z } from 'zod';

/** What is wrong with a request, in no provider's words yet. `path` leads to the value, or to where a member is missing. */
export type Flaw = { kind: 'missing' | 'unknown' | 'invalid'; path: readonly (string | number)[]; message: string };

type Issue = z.core.$ZodIssue;

/** The value as the schema sees it; `refuse` gets the first flaw otherwise and throws in the provider's own words. */
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
    // The branch that came furthest is the one that was meant.
    const branches = issue.errors.flatMap((branch) => branch.slice(0, 1).map((inner) => flawOf(inner, path)));
    const [meant] = branches.sort((a, b) => b.path.length - a.path.length);
    if (meant !== undefined) return meant;
  }
  const missing = issue.code === 'invalid_type' && issue.message.endsWith('received undefined');
  return { kind: missing ? 'missing' : 'invalid', path, message: issue.message };
}
