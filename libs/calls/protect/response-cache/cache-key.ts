import { hash } from 'node:crypto';
import type { ForwardRequest, Target } from '#libs/calls/call.ts';
import { scanMembers } from '#libs/kernel/json/json-members.ts';

export type CacheScope = {
  workspaceId: string;
  /** The caller's partition inside the workspace; empty for the common one. */
  namespace: string;
  /** A stable id of the credential: that of the virtual key, or a digest of the caller's own key. */
  credentialId: string;
};

/**
 * Returns the keys of an answer: SHA-256 over everything that it depends on, beginning with the workspace, so that no
 * request of one workspace can have the key of another one's answer (SEC-7). It includes the namespace, credential,
 * provider, address and settings, operation, model, the body that the provider gets, the client's headers that are
 * sent, and how the answer is translated. It does not include `stream` and `stream_options`, because a stored answer is
 * used for both forms.
 */
export function cacheKey(
  scope: CacheScope,
  request: ForwardRequest,
  target: Target,
  sentHeaders: Readonly<Record<string, string>>,
): Buffer {
  const facts = [
    1, // The version of this format.
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

// These members are part of the key separately, or do not change the answer.
const left: ReadonlySet<string> = new Set(['model', 'stream', 'stream_options']);

// Numbers that a double cannot always represent exactly: two of them could become the same text.
const inexactNumber = /\d{16}|\d[eE][+-]?\d/;

/**
 * The members of the body without those above, sorted by name. Inner objects are sorted too, so that clients that write
 * the same call differently share an answer. If numbers would lose digits, the body's own bytes are used instead.
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

/** Returns JSON in which the members of every object are sorted. */
function canonical(value: unknown): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  const members = Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1));
  return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${canonical(member)}`).join(',')}}`;
}
