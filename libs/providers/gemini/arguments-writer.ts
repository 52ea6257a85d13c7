import { isDeepStrictEqual } from 'node:util';
import type { GatewayError } from '#libs/kernel/errors.ts';
import { asText, parseJson, type Json } from '../chat/json-value.ts';
import { unusable } from './decode.ts';

/** Writes the arguments of one call as they arrive. The returned texts, concatenated, are one JSON object. */
export type ArgumentsWriter = {
  /** Adds the next element of `partialArgs`. Throws provider_failed if it makes the JSON invalid. */
  add: (raw: Json) => string;
  /** Returns the rest of the text, when no element follows. Throws like `add`. */
  end: () => string;
};

/** How many characters the writers of one stream can buffer together. */
export type ArgumentsMemory = { left: number };
export const argumentsMemoryMax = 4 * 1_024 * 1_024;
/** The cost of an entry of a map in addition to its text. */
const entryCost = 64;

/** An object or list whose end is not written yet. `written`: its members that are written. */
type OpenNode = { step: Step | null; isList: boolean; written: Set<Step> };
/** A value that is written later: a growing string, the text of a value, or an object or list of these. */
type LateLeaf = { isString: boolean; text: string; isOpen: boolean };
type LateNode = { isList: boolean; members: Map<Step, LateLeaf | LateNode> };

/**
 * Gemini sends pieces with their paths (`$.a.b[0].c`), in any order, but JSON text has an order. A piece that follows
 * the written text is written immediately; an object or list ends when a piece is outside of it. A piece that cannot be
 * written yet (another string has not ended, or an earlier item of a list is missing) waits for the end of the call. So
 * do all later pieces except those of the string that is being written, because the waiting pieces can belong to any
 * open object. A piece of an object that has ended, or a second value for a path, is an error: wrong arguments are
 * never passed on.
 *
 * Members are stored only in sets and maps and written as JSON, so that no name (`__proto__`) is special.
 */
export function createArgumentsWriter(memory: ArgumentsMemory): ArgumentsWriter {
  const open: OpenNode[] = [{ step: null, isList: false, written: new Set() }];
  let begin = '{';
  let openString: PartialArg['path'] | null = null;
  const late: LateNode = { isList: false, members: new Map() };

  const keep = (characters: number): void => {
    memory.left -= characters;
    if (memory.left < 0)
      throw invalidArguments('they have more members, or more of them out of order, than are buffered');
  };

  const innermost = (): OpenNode => open.at(-1) as OpenNode;

  /** The text that precedes a member's value. */
  const head = (node: OpenNode, step: Step): string => {
    keep(costOf(step));
    const comma = node.written.size === 0 ? '' : ',';
    node.written.add(step);
    return node.isList ? comma : `${comma}${JSON.stringify(step)}:`;
  };

  const closeDownTo = (depth: number): string =>
    open
      .splice(depth)
      .reverse()
      .map(({ isList }) => (isList ? ']' : '}'))
      .join('');

  /** How many of the open objects and lists are on the path. */
  const sharedDepth = (path: PartialArg['path']): number => {
    let depth = 1;
    while (depth < open.length && depth < path.length && open[depth]?.step === path[depth - 1]) depth += 1;
    return depth;
  };

  /** Whether the piece can be written now. */
  const isNext = (path: PartialArg['path'], depth: number): boolean => {
    const node = open[depth - 1] as OpenNode;
    const [step = 0, ...deeper] = path.slice(depth - 1);
    if (node.isList !== (typeof step === 'number'))
      throw invalidArguments('a path treats a list as an object, or the reverse');
    if (node.written.has(step)) throw invalidArguments('a value continues after its end');
    return (
      (!node.isList || step === node.written.size) && deeper.every((each) => typeof each === 'string' || each === 0)
    );
  };

  const write = ({ path, willContinue }: PartialArg, value: { isString: boolean; text: string }, depth: number) => {
    let text = closeDownTo(depth);
    for (const [at, step] of path.entries()) {
      if (at < depth - 1) continue;
      text += head(innermost(), step);
      if (at === path.length - 1) break;
      const isList = typeof path[at + 1] === 'number';
      open.push({ step, isList, written: new Set() });
      text += isList ? '[' : '{';
    }
    if (!value.isString) return text + value.text;
    openString = willContinue ? path : null;
    return `${text}"${inString(value.text)}${willContinue ? '' : '"'}`;
  };

  const keepForLater = (
    { path, willContinue }: PartialArg,
    { isString, text }: { isString: boolean; text: string },
  ): void => {
    let node = late;
    for (const [at, step] of path.entries()) {
      if (node.isList !== (typeof step === 'number'))
        throw invalidArguments('a path treats a list as an object, or the reverse');
      const found = node.members.get(step);
      if (found === undefined) keep(costOf(step));
      if (at < path.length - 1) {
        const next = found ?? { isList: typeof path[at + 1] === 'number', members: new Map() };
        if (!('members' in next)) throw invalidArguments('a value is also an object or list');
        node.members.set(step, next);
        node = next;
        continue;
      }
      if (found !== undefined && ('members' in found || !found.isOpen || !isString)) {
        throw invalidArguments('a value continues after its end');
      }
      keep(text.length);
      node.members.set(step, { isString, text: (found?.text ?? '') + text, isOpen: isString && willContinue });
    }
  };

  /** Returns the waiting text, and the ends of everything that is open. */
  const end = (): string => {
    let text = openString === null ? '' : '"';
    openString = null;
    while (open.length > 0) {
      const waiting = nodeAt(late, open);
      const node = innermost();
      if (waiting !== null && waiting.isList !== node.isList) {
        throw invalidArguments('a path treats a list as an object, or the reverse');
      }
      for (const [step, member] of inOrder(waiting)) {
        if (node.written.has(step)) throw invalidArguments('a value continues after its end');
        if (node.isList && step !== node.written.size) throw invalidArguments('a list lacks an item');
        text += head(node, step) + textOfLate(member);
      }
      text += closeDownTo(open.length - 1);
      // Everything in it is written.
      const around = node.step === null ? null : nodeAt(late, open);
      if (node.step !== null) around?.members.delete(node.step);
    }
    return text;
  };

  const add = (raw: Json): string => {
    const arg = readPartialArg(raw);
    if (arg === null) throw invalidArguments('a path or a value is invalid');
    const { path, value, willContinue } = arg;
    if (openString !== null && isDeepStrictEqual(path, openString)) {
      if (value !== null && !value.isString) throw invalidArguments('a string continues as another type');
      if (!willContinue) openString = null;
      return `${inString(value?.text ?? '')}${willContinue ? '' : '"'}`;
    }
    // It has no content, or only ends a value that was written before.
    if (value === null && !willContinue) return '';
    const piece = value ?? { isString: true, text: '' };
    const depth = sharedDepth(path);
    if (openString === null && late.members.size === 0 && isNext(path, depth)) return write(arg, piece, depth);
    keepForLater(arg, piece);
    return '';
  };

  const begun = (text: string): string => {
    const whole = begin + text;
    begin = '';
    return whole;
  };
  return { add: (raw) => begun(add(raw)), end: () => begun(end()) };
}

const invalidArguments = (why: string): GatewayError =>
  unusable(`streamed arguments of a function call that are not valid JSON: ${why}`);

const costOf = (step: Step): number => entryCost + String(step).length;
const inString = (text: string): string => JSON.stringify(text).slice(1, -1);

/** The part that waits to be written into the innermost open object or list. */
function nodeAt(late: LateNode, open: readonly OpenNode[]): LateNode | null {
  let node: LateNode | null = late;
  for (const { step } of open) {
    if (step === null || node === null) continue;
    const next: LateLeaf | LateNode | undefined = node.members.get(step);
    if (next !== undefined && !('members' in next)) throw invalidArguments('a value is also an object or list');
    node = next ?? null;
  }
  return node;
}

/** Items of a list are sorted by index, because they can arrive in any order. */
function inOrder(node: LateNode | null): (readonly [Step, LateLeaf | LateNode])[] {
  const members = [...(node?.members ?? [])];
  return node?.isList === true ? members.toSorted(([a], [b]) => Number(a) - Number(b)) : members;
}

function textOfLate(late: LateLeaf | LateNode): string {
  if (!('members' in late)) return late.isString ? JSON.stringify(late.text) : late.text;
  const members = inOrder(late).map(([step, member], index) => {
    if (late.isList && step !== index) throw invalidArguments('a list lacks an item');
    return late.isList ? textOfLate(member) : `${JSON.stringify(step)}:${textOfLate(member)}`;
  });
  return late.isList ? `[${members.join(',')}]` : `{${members.join(',')}}`;
}

/** A member's name, or an index in a list. */
type Step = string | number;

/** One piece of a call's arguments: where it belongs, and a piece of a string or the JSON text of another value. */
type PartialArg = {
  path: readonly [Step, ...Step[]];
  /** null: it only ends the previous value. */
  value: { isString: boolean; text: string } | null;
  willContinue: boolean;
};

const depthMax = 100;
// RFC 9535, 2.3: `.name`, `[0]`, `['name']`, `["name"]`. Names after a dot can have more characters than in the RFC,
// because clients choose the names of properties (`$.first-name`).
const segment = /\.([^.[\]]+)|\[(0|[1-9]\d{0,8})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]/suy;

/**
 * Reads an element of `functionCall.partialArgs` (cloud.google.com/vertex-ai, REST, PartialArg): `jsonPath`, one of
 * `stringValue`, `numberValue`, `boolValue` and `nullValue`, and `willContinue`. null if it is invalid.
 */
function readPartialArg(raw: Json): PartialArg | null {
  const path = readPath(asText(raw['jsonPath']) ?? '');
  const value = readValue(raw);
  if (path === null || value === undefined) return null;
  return { path, value, willContinue: raw['willContinue'] === true };
}

function readPath(text: string): PartialArg['path'] | null {
  if (!text.startsWith('$')) return null;
  const steps: Step[] = [];
  let at = 1;
  while (at < text.length) {
    segment.lastIndex = at;
    const [whole, plain, index, single, double] = segment.exec(text) ?? [];
    if (whole === undefined || steps.length === depthMax) return null;
    const name = plain ?? unquote(single?.replaceAll(/\\'|"/g, (found) => (found === '"' ? '\\"' : "'")) ?? double);
    if (index === undefined && name === null) return null;
    steps.push(name ?? Number(index));
    at += whole.length;
  }
  const [first, ...rest] = steps;
  return first === undefined ? null : [first, ...rest];
}

/** A quoted name has the escapes of JSON. */
const unquote = (written: string | undefined): string | null =>
  written === undefined ? null : (asText(parseJson(`"${written}"`)) ?? null);

/** undefined: the value is invalid. */
function readValue(raw: Json): PartialArg['value'] | undefined {
  const { stringValue, numberValue, boolValue } = raw;
  if (stringValue !== undefined) {
    return typeof stringValue === 'string' ? { isString: true, text: stringValue } : undefined;
  }
  if (numberValue !== undefined) {
    return Number.isFinite(numberValue) ? { isString: false, text: JSON.stringify(numberValue) } : undefined;
  }
  if (boolValue !== undefined) {
    return typeof boolValue === 'boolean' ? { isString: false, text: JSON.stringify(boolValue) } : undefined;
  }
  // Protobuf's JSON has null; the types of some clients have the name NULL_VALUE.
  return 'nullValue' in raw ? { isString: false, text: 'null' } : null;
}
