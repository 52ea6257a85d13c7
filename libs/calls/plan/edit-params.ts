import type { PathStep } from '#libs/contracts/param-path.ts';
import type { MemberEdits } from '#libs/kernel/json/json-members.ts';
import type { Leaf } from './plan.ts';

type Edited = { edits: MemberEdits; model: string | null };

/**
 * Returns the changes that a leaf makes to a body, as edits of its top-level members: defaults for members that the
 * body lacks, then overrides, then drops. Members without a change keep their bytes. A member that is changed inside is
 * serialised again. `model` is not among the edits: it is the model that the leaf requests, or null if the leaf keeps
 * the caller's. Pure.
 */
export function editParams(
  { defaults, overrides, drops }: Pick<Leaf, 'defaults' | 'overrides' | 'drops'>,
  params: Readonly<Record<string, unknown>>,
): Edited {
  if (drops.length === 0 && defaults.size === 0) return overridesOnly(overrides);
  const edits = new Map<string, string | undefined>();
  for (const [name, raw] of defaults) if (!Object.hasOwn(params, name)) edits.set(name, raw);
  for (const [name, raw] of overrides) edits.set(name, raw);
  // Parsed only once, even if several paths point into it, because a body is large and each copy blocks every other
  // call.
  const opened = new Map<string, { value: unknown; isChanged: boolean }>();
  for (const [top, ...rest] of drops) {
    if (typeof top !== 'string') continue;
    const set = edits.get(top);
    const isThere = edits.has(top) ? set !== undefined : Object.hasOwn(params, top);
    if (!isThere) continue;
    if (rest.length === 0) {
      // A member that only a default or an override would add is not added.
      if (Object.hasOwn(params, top)) edits.set(top, undefined);
      else edits.delete(top);
      opened.delete(top);
      continue;
    }
    let member = opened.get(top);
    if (!member) {
      member = { value: set === undefined ? structuredClone(params[top]) : JSON.parse(set), isChanged: false };
      opened.set(top, member);
    }
    if (removeAt(member.value, rest)) member.isChanged = true;
  }
  for (const [top, { value, isChanged }] of opened) if (isChanged) edits.set(top, JSON.stringify(value));
  return withoutModel(edits);
}

/** The same for every call, so they are made once for each config, which saves 0.15 µs per call. */
function overridesOnly(overrides: Leaf['overrides']): Edited {
  let edited = made.get(overrides);
  if (edited === undefined) made.set(overrides, (edited = withoutModel(new Map(overrides))));
  return edited;
}

const made = new WeakMap<Leaf['overrides'], Edited>();

function withoutModel(edits: Map<string, string | undefined>): Edited {
  const raw = edits.get('model');
  const model: unknown = raw === undefined ? null : JSON.parse(raw);
  edits.delete('model');
  return { edits: Object.fromEntries(edits), model: typeof model === 'string' ? model : null };
}

/** Removes the value at the end of the steps, in place. Returns whether there was one. */
function removeAt(value: unknown, [step, ...rest]: readonly PathStep[]): boolean {
  if (typeof value !== 'object' || value === null || step === undefined) return false;
  if (step === '*') {
    if (!Array.isArray(value)) return false;
    if (rest.length === 0) return value.splice(0).length > 0;
    return value.map((item) => removeAt(item, rest)).includes(true);
  }
  if (!Object.hasOwn(value, step)) return false;
  if (rest.length > 0) return removeAt((value as Record<PathStep, unknown>)[step], rest);
  if (Array.isArray(value)) return typeof step === 'number' && value.splice(step, 1).length > 0;
  return Reflect.deleteProperty(value, step);
}
