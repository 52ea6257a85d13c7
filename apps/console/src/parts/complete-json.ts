import type { CompletionContext, CompletionResult } from '@codemirror/autocomplete';
import { syntaxTree } from '@codemirror/language';
import type { EditorState } from '@codemirror/state';

/** The parts of JSON Schema that completion reads. */
export type JsonSchema = {
  $ref?: string;
  $defs?: Readonly<Record<string, JsonSchema>>;
  type?: string | readonly string[];
  description?: string;
  properties?: Readonly<Record<string, JsonSchema>>;
  items?: JsonSchema;
  enum?: readonly unknown[];
  const?: unknown;
  anyOf?: readonly JsonSchema[];
  oneOf?: readonly JsonSchema[];
  allOf?: readonly JsonSchema[];
};
export type KnownValues = Readonly<Record<string, readonly string[]>>;

type Node = ReturnType<ReturnType<typeof syntaxTree>['resolveInner']>;

/** The possible completions at the cursor: names of members that are not set yet, or values of the member. null: unknown. */
export function completeJson(
  { state, pos, explicit }: Pick<CompletionContext, 'state' | 'pos' | 'explicit'>,
  schema: JsonSchema,
  values: KnownValues,
): CompletionResult | null {
  const typed = /"?[\w.@/-]*$/.exec(state.sliceDoc(Math.max(0, pos - 200), pos))?.[0] ?? '';
  if (typed === '' && !explicit) return null;
  const node = syntaxTree(state).resolveInner(pos, -1);
  const end = pos + (state.sliceDoc(pos, pos + 1) === '"' && typed.startsWith('"') ? 1 : 0);
  const range = { from: pos - typed.length, to: end };
  const value = valueAt(node, state, pos);
  if (value !== null) {
    const { path, member } = value;
    const known = [
      ...schemasAt(schema, path).flatMap(valuesOf),
      ...(member === null ? [] : (values[member] ?? [])).map((each) => JSON.stringify(each)),
    ];
    if (known.length === 0) return null;
    return { ...range, options: [...new Set(known)].map((label) => ({ label, type: 'constant' })) };
  }
  const object = enclosing(node, 'Object');
  if (object === null) return null;
  const present = new Set(
    object.getChildren('Property').flatMap((property) => {
      const name = property.getChild('PropertyName');
      // Excludes the name that is being written.
      return name === null || (name.from <= pos && pos <= name.to) ? [] : [nameOf(name, state)];
    }),
  );
  const isNamed = /^\s*:/.test(state.sliceDoc(end, end + 20));
  const members = schemasAt(schema, pathOf(object, state)).flatMap((each) => Object.entries(each.properties ?? {}));
  const options = members
    .filter(([name], index) => !present.has(name) && members.findIndex(([other]) => other === name) === index)
    .map(([name, of]) => ({
      label: `"${name}"`,
      apply: isNamed ? `"${name}"` : `"${name}": `,
      type: 'property',
      detail: typeOf(resolve(schema, of)),
      ...(of.description === undefined ? {} : { info: of.description }),
    }));
  return options.length === 0 ? null : { ...range, options };
}

/**
 * The position of the value at the cursor; null if the cursor is at a name. `member`: the name that the value belongs to.
 */
function valueAt(node: Node, state: EditorState, pos: number): { path: string[]; member: string | null } | null {
  for (let each: Node | null = node; each !== null; each = each.parent) {
    if (each.name === 'Property') {
      const name = each.getChild('PropertyName');
      if (name === null || pos <= name.to || !state.sliceDoc(name.to, pos).includes(':')) return null;
      const member = nameOf(name, state);
      return { path: [...pathOf(each.parent, state), member], member };
    }
    if (each.name === 'Array') return { path: [...pathOf(each, state), '*'], member: memberOf(each, state) };
    if (each.name === 'Object') {
      // If the value after a colon is missing, the parser can already have closed the property.
      const before = /"((?:[^"\\]|\\.)*)"\s*:\s*"?[\w.@/-]*$/.exec(state.sliceDoc(each.from, pos))?.[1];
      return before === undefined ? null : { path: [...pathOf(each, state), before], member: before };
    }
  }
  return null;
}

function enclosing(node: Node | null, name: string): Node | null {
  for (let each = node; each !== null; each = each.parent) if (each.name === name) return each;
  return null;
}

const nameOf = (node: Node, state: EditorState): string => {
  const text = state.sliceDoc(node.from, node.to);
  try {
    return String(JSON.parse(text));
  } catch {
    return text.replaceAll('"', '');
  }
};

const memberOf = (node: Node, state: EditorState): string | null => {
  const name = enclosing(node.parent, 'Property')?.getChild('PropertyName');
  return name == null ? null : nameOf(name, state);
};

/** The names from the root to an object or array; `*` for any entry of an array. */
function pathOf(node: Node | null, state: EditorState): string[] {
  const path: string[] = [];
  for (let each = node; each?.parent != null; each = each.parent) {
    const { parent } = each;
    if (parent.name === 'Array') path.unshift('*');
    const name = parent.name === 'Property' ? parent.getChild('PropertyName') : null;
    if (name !== null) path.unshift(nameOf(name, state));
  }
  return path;
}

/** Every schema that a value at this path can have. */
function schemasAt(root: JsonSchema, path: readonly string[]): JsonSchema[] {
  return path.reduce<JsonSchema[]>(
    (found, step) =>
      found.flatMap(({ properties, items }) => {
        const next = step === '*' ? items : properties?.[step];
        return next === undefined ? [] : expand(root, next);
      }),
    expand(root, root),
  );
}

function resolve(root: JsonSchema, schema: JsonSchema): JsonSchema {
  const name = schema.$ref?.replace('#/$defs/', '');
  if (name === undefined) return schema;
  return name === '#' ? root : (root.$defs?.[name] ?? {});
}

function expand(root: JsonSchema, given: JsonSchema, depth = 0): JsonSchema[] {
  const schema = resolve(root, given);
  const choices = [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])];
  return depth > 8 ? [schema] : [schema, ...choices.flatMap((each) => expand(root, each, depth + 1))];
}

function valuesOf({ enum: choices = [], const: only, type }: JsonSchema): string[] {
  const values = [...choices, ...(only === undefined ? [] : [only])].map((value) => JSON.stringify(value));
  return type === 'boolean' ? [...values, 'true', 'false'] : values;
}

const typeOf = ({ type, enum: choices }: JsonSchema): string =>
  choices === undefined ? (typeof type === 'string' ? type : '') : choices.join(' | ');
