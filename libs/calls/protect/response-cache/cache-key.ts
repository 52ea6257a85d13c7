import { hash } from 'node:crypto';
import type { ForwardRequest, Target } from '#libs/calls/call.ts';
import { scanMembers } from '#libs/kernel/json-members.ts';

export type CacheScope = {
  workspaceId: string;
  /** The caller's partition inside the workspace; empty: the common one. */
  namespace: string;
  /** Stable id of the credential: the virtual key's, or a digest of the caller's own key. */
  credentialId: string;
};

/**
 * Names of an answer: SHA-256 over everything that decides what it would be, the workspace first, so that nothing one
 * workspace sends can name an answer of another (SEC-7). In it: namespace, credential, provider,
 * address and settings, operation, model, the body as the provider gets it, the client's headers that go out, and how
 * the answer is translated. Not in it: `stream` and `stream_options`, because a stored answer serves both forms.
 */
export function cacheKey(
  scope: CacheScope,
  request: ForwardRequest,
  target: Target,
  sentHeaders: Readonly<Record<string, string>>,
): Buffer {
  const facts = [
    1, // the version of this format
    scope.workspaceId,
    scope.namespace,
    scope.credentialId,
    target.provider,
    target.baseUrl.href,
    sorted(target.settings),
    request.operation,
    target.model ?? request.model,
    sorted(sentHeaders),
    request.strict ?? true,
    request.unsupportedParams ?? 'drop',
    canonicalBody(request),
  ];
  return hash('sha256', JSON.stringify(facts), 'buffer');
}

const sorted = (record: Readonly<Record<string, string>>): [string, string][] =>
  Object.entries(record).toSorted(([a], [b]) => (a < b ? -1 : 1));

// Named apart, or without influence on what is said.
const left: ReadonlySet<string> = new Set(['model', 'stream', 'stream_options']);

// Numbers that a double may not hold exactly: two of them could become the same text.
const inexactNumber = /\d{16}|\d[eE][+-]?\d/;

/**
 * The members of the body but the ones named apart, sorted by name. Inside, objects are sorted too, so that clients that
 * write the same call differently share an answer; a body with numbers that would lose digits keeps its own bytes there.
 */
function canonicalBody({ body, parsed, edits = {} }: ForwardRequest): [string, string][] {
  const text = body.toString();
  const exact = !inexactNumber.test(text);
  const members = new Map<string, string>();
  if (exact) {
    const values = parsed ?? (JSON.parse(text) as Record<string, unknown>);
    for (const [name, value] of Object.entries(values)) if (!left.has(name)) members.set(name, canonical(value));
  } else {
    for (const { name, valueStart, valueEnd } of scanMembers(body)) {
      if (!left.has(name)) members.set(name, body.toString('utf8', valueStart, valueEnd));
    }
  }
  for (const [name, raw] of Object.entries(edits)) {
    if (left.has(name)) continue;
    if (raw === undefined) members.delete(name);
    else members.set(name, exact && !inexactNumber.test(raw) ? canonical(JSON.parse(raw)) : raw);
  }
  return [...members].toSorted(([a], [b]) => (a < b ? -1 : 1));
}

/** JSON with the members of every object in order. */
function canonical(value: unknown): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  const members = Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1));
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${canonical(member)}`).join(',')}}`;
}
