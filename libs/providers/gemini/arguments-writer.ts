import { isDeepStrictEqual } from 'node:util';
import type { GatewayError } from '#libs/kernel/errors.ts';
import type { Json } from '../json-value.ts';
import { unusable } from './decode.ts';
import { readPartialArg, type PartialArg, type Step } from './read-partial-arg.ts';

/** Writes the arguments of one call as they come. What its methods return makes up the text of one JSON object. */
export type ArgumentsWriter = {
  /** Takes the next element of `partialArgs`. Throws provider_failed for one that makes no JSON. */
  add: (raw: Json) => string;
  /** What is left to be said when no element follows. Throws as `add`. */
  end: () => string;
};

/** What writers may remember, in characters; those of one stream share it. */
export type ArgumentsMemory = { left: number };
export const argumentsMemoryMax = 4 * 1_024 * 1_024;
/** What an entry of a map costs beside its text. */
const entryCost = 64;

/** An object or list whose end was not written yet. `told` are the members that were. */
type OpenNode = { step: Step | null; isList: boolean; told: Set<Step> };
/** What is said later: a string that grows or the text of a value; or an object or list of such. */
type LateLeaf = { isString: boolean; text: string; isOpen: boolean };
type LateNode = { isList: boolean; members: Map<Step, LateLeaf | LateNode> };

/**
 * Gemini names the place of each piece (`$.a.b[0].c`), and a JSON text has an order. A piece that stands behind what was
 * written before is written at once; an object or list ends when a piece stands outside of it. What cannot be written where
 * it comes (another string has not ended, or a list's earlier item is missing) waits for the end of the call, and so does
 * everything after it but the string that is being written, for nobody knows which objects the waiting pieces still need.
 * What would have to stand in an object that has ended, or twice, is refused: arguments are told right or not at all.
 *
 * Members are kept in sets and maps only, and written as JSON, so that no name (`__proto__`) means anything.
 */
export function createArgumentsWriter(memory: ArgumentsMemory): ArgumentsWriter {
  const open: OpenNode[] = [{ step: null, isList: false, told: new Set() }];
  let begin = '{';
  let openString: PartialArg['path'] | null = null;
  const late: LateNode = { isList: false, members: new Map() };

  const keep = (characters: number): void => {
    memory.left -= characters;
    if (memory.left < 0) throw misshapen('they have more members, or more of them out of order, than are kept');
  };

  const innermost = (): OpenNode => open.at(-1) as OpenNode;

  /** What stands before a member's value. */
  const head = (node: OpenNode, step: Step): string => {
    keep(costOf(step));
    const comma = node.told.size === 0 ? '' : ',';
    node.told.add(step);
    return node.isList ? comma : `${comma}${JSON.stringify(step)}:`;
  };

  const closeDownTo = (depth: number): string =>
    open
      .splice(depth)
      .reverse()
      .map(({ isList }) => (isList ? ']' : '}'))
      .join('');

  /** How many of the open objects and lists the path goes through. */
  const sharedDepth = (path: PartialArg['path']): number => {
    let depth = 1;
    while (depth < open.length && depth < path.length && open[depth]?.step === path[depth - 1]) depth += 1;
    return depth;
  };

  /** Whether the piece can be written where it comes. */
  const isNext = (path: PartialArg['path'], depth: number): boolean => {
    const node = open[depth - 1] as OpenNode;
    const [step = 0, ...deeper] = path.slice(depth - 1);
    if (node.isList !== (typeof step === 'number'))
      throw misshapen('a path takes a list for an object, or the reverse');
    if (node.told.has(step)) throw misshapen('a value comes again after its end');
    return (!node.isList || step === node.told.size) && deeper.every((each) => typeof each === 'string' || each === 0);
  };

  const write = ({ path, willContinue }: PartialArg, value: { isString: boolean; text: string }, depth: number) => {
    let text = closeDownTo(depth);
    for (const [at, step] of path.entries()) {
      if (at < depth - 1) continue;
      text += head(innermost(), step);
      if (at === path.length - 1) break;
      const isList = typeof path[at + 1] === 'number';
      open.push({ step, isList, told: new Set() });
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
        throw misshapen('a path takes a list for an object, or the reverse');
      const found = node.members.get(step);
      if (found === undefined) keep(costOf(step));
      if (at < path.length - 1) {
        const next = found ?? { isList: typeof path[at + 1] === 'number', members: new Map() };
        if (!('members' in next)) throw misshapen('a value is also an object or list');
        node.members.set(step, next);
        node = next;
        continue;
      }
      if (found !== undefined && ('members' in found || !found.isOpen || !isString)) {
        throw misshapen('a value comes again after its end');
      }
      keep(text.length);
      node.members.set(step, { isString, text: (found?.text ?? '') + text, isOpen: isString && willContinue });
    }
  };

  /** What waited, and the ends of all that is open. */
  const end = (): string => {
    let text = openString === null ? '' : '"';
    openString = null;
    while (open.length > 0) {
      const waiting = nodeAt(late, open);
      const node = innermost();
      if (waiting !== null && waiting.isList !== node.isList) {
        throw misshapen('a path takes a list for an object, or the reverse');
      }
      for (const [step, member] of inOrder(waiting)) {
        if (node.told.has(step)) throw misshapen('a value comes again after its end');
        if (node.isList && step !== node.told.size) throw misshapen('a list lacks an item');
        text += head(node, step) + textOfLate(member);
      }
      text += closeDownTo(open.length - 1);
      // What stood in it is said.
      const around = node.step === null ? null : nodeAt(late, open);
      if (node.step !== null) around?.members.delete(node.step);
    }
    return text;
  };

  const add = (raw: Json): string => {
    const arg = readPartialArg(raw);
    if (arg === null) throw misshapen('a path or a value cannot be read');
    const { path, value, willContinue } = arg;
    if (openString !== null && isDeepStrictEqual(path, openString)) {
      if (value !== null && !value.isString) throw misshapen('a string goes on as another value');
      if (!willContinue) openString = null;
      return `${inString(value?.text ?? '')}${willContinue ? '' : '"'}`;
    }
    // It says nothing, or only that what was said before has ended.
    if (value === null && !willContinue) return '';
    const said = value ?? { isString: true, text: '' };
    const depth = sharedDepth(path);
    if (openString === null && late.members.size === 0 && isNext(path, depth)) return write(arg, said, depth);
    keepForLater(arg, said);
    return '';
  };

  const begun = (text: string): string => {
    const whole = begin + text;
    begin = '';
    return whole;
  };
  return { add: (raw) => begun(add(raw)), end: () => begun(end()) };
}

const misshapen = (why: string): GatewayError =>
  unusable(`streamed arguments of a function call that make no JSON: ${why}`);

const costOf = (step: Step): number => entryCost + String(step).length;
const inString = (text: string): string => JSON.stringify(text).slice(1, -1);

/** What waits to be written into the innermost open object or list. */
function nodeAt(late: LateNode, open: readonly OpenNode[]): LateNode | null {
  let node: LateNode | null = late;
  for (const { step } of open) {
    if (step === null || node === null) continue;
    const next: LateLeaf | LateNode | undefined = node.members.get(step);
    if (next !== undefined && !('members' in next)) throw misshapen('a value is also an object or list');
    node = next ?? null;
  }
  return node;
}

/** Lists by index: their items may have come in any order. */
function inOrder(node: LateNode | null): (readonly [Step, LateLeaf | LateNode])[] {
  const members = [...(node?.members ?? [])];
  return node?.isList === true ? members.toSorted(([a], [b]) => Number(a) - Number(b)) : members;
}

function textOfLate(late: LateLeaf | LateNode): string {
  if (!('members' in late)) return late.isString ? JSON.stringify(late.text) : late.text;
  const members = inOrder(late).map(([step, member], index) => {
    if (late.isList && step !== index) throw misshapen('a list lacks an item');
    return late.isList ? textOfLate(member) : `${JSON.stringify(step)}:${textOfLate(member)}`;
  });
  return late.isList ? `[${members.join(',')}]` : `{${members.join(',')}}`;
}
