import { isDeepStrictEqual } from 'node:util';
import type { GatewayError } from '#libs/kernel/errors.ts';
import { unusable } from './decode.ts';
import { readPartialArg, type PartialArg, type PieceValue, type Step } from './partial-arg.ts';
import type { Json } from '../turns/json-value.ts';

/** How many characters the writers of one stream can buffer together. */
export type ArgumentsMemory = { left: number };
export const argumentsMemoryMax = 4 * 1_024 * 1_024;
/** The cost of an entry of a map in addition to its text. */
const entryCost = 64;

/** An object or list whose end is not written yet. `written`: its members that are written. */
type OpenNode = { step: Step | null; isList: boolean; written: Set<Step> };
/** A value that is written later: a growing string, the text of a value, or an object or list of these. */
type LateLeaf = PieceValue & { isOpen: boolean };
type LateNode = { isList: boolean; members: Map<Step, LateLeaf | LateNode> };

/**
 * Writes the arguments of one call as they arrive. The returned texts, concatenated, are one JSON object.
 *
 * Gemini sends pieces with their paths (`$.a.b[0].c`), in any order, but JSON text has an order. A piece that follows
 * the written text is written immediately; an object or list ends when a piece is outside of it. A piece that cannot be
 * written yet (another string has not ended, or an earlier item of a list is missing) waits for the end of the call. So
 * do all later pieces except those of the string that is being written, because the waiting pieces can belong to any
 * open object. A piece of an object that has ended, or a second value for a path, is an error: wrong arguments are
 * never passed on.
 *
 * Members are stored only in sets and maps and written as JSON, so that no name (`__proto__`) is special.
 */
export class ArgumentsWriter {
  readonly #memory: ArgumentsMemory;
  readonly #open: OpenNode[] = [{ step: null, isList: false, written: new Set() }];
  readonly #late: LateNode = { isList: false, members: new Map() };
  #begin = '{';
  #openString: PartialArg['path'] | null = null;

  constructor(memory: ArgumentsMemory) {
    this.#memory = memory;
  }

  /** Adds the next element of `partialArgs`. Throws provider_failed if it makes the JSON invalid. */
  add(raw: Json): string {
    return this.#begun(this.#add(raw));
  }

  /** Returns the rest of the text, when no element follows. Throws like `add`. */
  end(): string {
    return this.#begun(this.#end());
  }

  #begun(text: string): string {
    const whole = this.#begin + text;
    this.#begin = '';
    return whole;
  }

  #add(raw: Json): string {
    const arg = readPartialArg(raw);
    if (arg === null) throw invalidArguments('a path or a value is invalid');
    const { path, value, willContinue } = arg;
    if (this.#openString !== null && isDeepStrictEqual(path, this.#openString)) {
      if (value !== null && !value.isString) throw invalidArguments('a string continues as another type');
      if (!willContinue) this.#openString = null;
      return `${inString(value?.text ?? '')}${willContinue ? '' : '"'}`;
    }
    // It has no content, or only ends a value that was written before.
    if (value === null && !willContinue) return '';
    const piece = value ?? { isString: true, text: '' };
    const depth = this.#sharedDepth(path);
    const canWrite = this.#openString === null && this.#late.members.size === 0 && this.#isNext(path, depth);
    if (canWrite) return this.#write(arg, piece, depth);
    keepForLater(this.#late, arg, piece, this.#memory);
    return '';
  }

  /** How many of the open objects and lists are on the path. */
  #sharedDepth(path: PartialArg['path']): number {
    const open = this.#open;
    let depth = 1;
    while (depth < open.length && depth < path.length && open[depth]?.step === path[depth - 1]) depth += 1;
    return depth;
  }

  /** Whether the piece can be written now. */
  #isNext(path: PartialArg['path'], depth: number): boolean {
    const node = this.#open[depth - 1] as OpenNode;
    const [step = 0, ...deeper] = path.slice(depth - 1);
    if (node.isList !== (typeof step === 'number')) throw mixedTypes();
    if (node.written.has(step)) throw invalidArguments('a value continues after its end');
    return (
      (!node.isList || step === node.written.size) && deeper.every((each) => typeof each === 'string' || each === 0)
    );
  }

  #write({ path, willContinue }: PartialArg, value: PieceValue, depth: number): string {
    let text = this.#closeDownTo(depth);
    for (const [at, step] of path.entries()) {
      if (at < depth - 1) continue;
      text += this.#head(this.#innermost(), step);
      if (at === path.length - 1) break;
      const isList = typeof path[at + 1] === 'number';
      this.#open.push({ step, isList, written: new Set() });
      text += isList ? '[' : '{';
    }
    if (!value.isString) return text + value.text;
    this.#openString = willContinue ? path : null;
    return `${text}"${inString(value.text)}${willContinue ? '' : '"'}`;
  }

  #innermost(): OpenNode {
    return this.#open.at(-1) as OpenNode;
  }

  /** The text that precedes a member's value. */
  #head(node: OpenNode, step: Step): string {
    keep(costOf(step), this.#memory);
    const comma = node.written.size === 0 ? '' : ',';
    node.written.add(step);
    return node.isList ? comma : `${comma}${JSON.stringify(step)}:`;
  }

  #closeDownTo(depth: number): string {
    const closed = this.#open.splice(depth).reverse();
    return closed.map(({ isList }) => (isList ? ']' : '}')).join('');
  }

  /** Returns the waiting text, and the ends of everything that is open. */
  #end(): string {
    let text = this.#openString === null ? '' : '"';
    this.#openString = null;
    while (this.#open.length > 0) {
      const waiting = nodeAt(this.#late, this.#open);
      const node = this.#innermost();
      if (waiting !== null && waiting.isList !== node.isList) throw mixedTypes();
      for (const [step, member] of inOrder(waiting)) {
        if (node.written.has(step)) throw invalidArguments('a value continues after its end');
        if (node.isList && step !== node.written.size) throw invalidArguments('a list lacks an item');
        text += this.#head(node, step) + textOfLate(member);
      }
      text += this.#closeDownTo(this.#open.length - 1);
      // Everything in it is written.
      const around = node.step === null ? null : nodeAt(this.#late, this.#open);
      if (node.step !== null) around?.members.delete(node.step);
    }
    return text;
  }
}

const invalidArguments = (why: string): GatewayError =>
  unusable(`streamed arguments of a function call that are not valid JSON: ${why}`);

const costOf = (step: Step): number => entryCost + String(step).length;
const mixedTypes = (): GatewayError => invalidArguments('a path treats a list as an object, or the reverse');

const inString = (text: string): string => JSON.stringify(text).slice(1, -1);

function keep(characters: number, memory: ArgumentsMemory): void {
  memory.left -= characters;
  if (memory.left < 0)
    throw invalidArguments('they have more members, or more of them out of order, than are buffered');
}

function keepForLater(
  late: LateNode,
  { path, willContinue }: PartialArg,
  { isString, text }: PieceValue,
  memory: ArgumentsMemory,
): void {
  let node = late;
  for (const [at, step] of path.entries()) {
    if (node.isList !== (typeof step === 'number')) throw mixedTypes();
    const found = node.members.get(step);
    if (found === undefined) keep(costOf(step), memory);
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
    keep(text.length, memory);
    node.members.set(step, { isString, text: (found?.text ?? '') + text, isOpen: isString && willContinue });
  }
}

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
