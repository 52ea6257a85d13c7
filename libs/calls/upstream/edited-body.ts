import type { MemberEdits } from '#libs/kernel/json/json-members.ts';

/** Returns a request's members as the provider gets them. `parsed`: the body as its caller has parsed it. */
export function editedBody(
  body: Buffer | string,
  edits: MemberEdits = {},
  parsed?: Readonly<Record<string, unknown>>,
): Readonly<Record<string, unknown>> {
  const given = parsed ?? (JSON.parse(body.toString()) as Readonly<Record<string, unknown>>);
  const changes = Object.entries(edits);
  if (changes.length === 0) return given;
  const members = new Map(Object.entries(given));
  for (const [name, raw] of changes) {
    if (raw === undefined) members.delete(name);
    else members.set(name, JSON.parse(raw));
  }
  return Object.fromEntries(members);
}
