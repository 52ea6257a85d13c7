import { isObject } from '../../records/read-documents.ts';
import { CliError } from '../../server/cli-error.ts';
import { parseReference, type Variables } from './variables.ts';

/** What becomes of a field: it has the same effect, another one, or none. */
export type Outcome = 'same' | 'changed' | 'unsupported';

/** A line of the report. `detail` says what changed, or what to do instead. It never contains a secret. */
export type FieldLine = { field: string; outcome: Outcome; detail: string | null };

const depthMax = 32;
const fieldsMax = 20_000;

/**
 * The report on a document: one line for each of its fields, in their order. A field is a value, or a list of values that
 * contains no objects and lists.
 */
export class FieldReport {
  readonly #lines = new Map<string, FieldLine | null>();

  /** Throws CliError for a document that is nested too deeply or has too many fields. */
  constructor(document: unknown) {
    for (const [field, value] of listFields(document, '')) {
      const isEmpty = value === null || (typeof value === 'object' && Object.keys(value).length === 0);
      this.#lines.set(field, isEmpty ? { field, outcome: 'same', detail: 'empty' } : null);
      if (this.#lines.size > fieldsMax) throw new CliError(`The file has more than ${fieldsMax} fields.`);
    }
  }

  /** Sets the line of a field. The first one counts. */
  set(field: string, outcome: Outcome, detail: string | null): void {
    if (this.#lines.get(field) === null) this.#lines.set(field, { field, outcome, detail });
  }

  /** Sets the line of a field that has no effect after all. A field that already had none keeps its reason. */
  withdraw(field: string, detail: string): void {
    const line = this.#lines.get(field);
    if (line === null || (line !== undefined && line.outcome !== 'unsupported' && line.detail !== 'empty')) {
      this.#lines.set(field, { field, outcome: 'unsupported', detail });
    }
  }

  /** All lines. A field that the import does not know is not supported. */
  lines(): FieldLine[] {
    return [...this.#lines].map(
      ([field, line]) =>
        line ?? { field, outcome: 'unsupported', detail: 'Unknown field. It is left out; check whether you need it.' },
    );
  }
}

function* listFields(value: unknown, path: string, depth = 0): Generator<[field: string, value: unknown]> {
  if (depth > depthMax) throw new CliError(`The file is nested more than ${depthMax} levels deep.`);
  if (isObject(value) && Object.keys(value).length > 0) {
    for (const [name, member] of Object.entries(value)) yield* listFields(member, memberPath(path, name), depth + 1);
  } else if (Array.isArray(value) && value.some((item) => typeof item === 'object' && item !== null)) {
    for (const [index, item] of value.entries()) yield* listFields(item, `${path}[${index}]`, depth + 1);
  } else yield [path, value];
}

const memberPath = (path: string, name: string): string =>
  /^[A-Za-z_][\w-]*$/.test(name) ? `${path}${path === '' ? '' : '.'}${name}` : `${path}[${JSON.stringify(name)}]`;

/** The value of a table for a name from the document, which could also be `constructor`. */
export const lookUp = <Value>(table: Readonly<Record<string, Value>>, name: string): Value | undefined =>
  Object.hasOwn(table, name) ? table[name] : undefined;

/** What all nodes of a document share. */
export type Source = { report: FieldReport; variables: Variables };

/** A value of the document with its path. Reading it as a type reports a value that does not fit, and then returns null. */
export class SourceNode {
  readonly value: unknown;
  readonly path: string;
  /** The name of the member, or '' for an item. */
  readonly name: string;
  readonly #source: Source;

  constructor(source: Source, value: unknown, path = '', name = '') {
    this.#source = source;
    this.value = value;
    this.path = path;
    this.name = name;
  }

  get isGiven(): boolean {
    return this.value !== undefined && this.value !== null;
  }

  /** The member of an object; not given if it does not exist. */
  member(name: string): SourceNode {
    const value = isObject(this.value) && Object.hasOwn(this.value, name) ? this.value[name] : undefined;
    return new SourceNode(this.#source, value, memberPath(this.path, name), name);
  }

  /** The members of an object; none for any other value. */
  members(): SourceNode[] {
    return isObject(this.value) ? Object.keys(this.value).map((name) => this.member(name)) : [];
  }

  /** The items of a list; none for any other value. */
  items(): SourceNode[] {
    const items = Array.isArray(this.value) ? this.value : [];
    return items.map((item, index) => new SourceNode(this.#source, item, `${this.path}[${index}]`));
  }

  same(detail: string | null = null): void {
    this.#report('same', detail);
  }

  changed(detail: string): void {
    this.#report('changed', detail);
  }

  unsupported(detail: string): void {
    this.#report('unsupported', detail);
  }

  /** All fields below have no effect after all. */
  withdraw(detail: string): void {
    for (const [field] of this.#fields()) this.#source.report.withdraw(field, detail);
  }

  /** `changed` with a detail, `same` without. */
  translated(detail: string | null): void {
    this.#report(detail === null ? 'same' : 'changed', detail);
  }

  /** A text. LiteLLM reads `os.environ/NAME` anywhere as a variable, and so does this. */
  text(): string | null {
    const value = this.#read();
    if (typeof value === 'number') return String(value);
    return typeof value === 'string' && value !== '' ? value : this.#refuse('a text', value);
  }

  /** A number of at least 0. */
  number(): number | null {
    const value = this.#read();
    const number = typeof value === 'string' && value.trim() !== '' ? Number(value) : value;
    return typeof number === 'number' && Number.isFinite(number) && number >= 0
      ? number
      : this.#refuse('a number of at least 0', value);
  }

  flag(): boolean | null {
    const value = this.#read();
    const text = typeof value === 'string' ? value.toLowerCase() : value;
    if (text === true || text === 'true' || text === 'yes' || text === 'on') return true;
    if (text === false || text === 'false' || text === 'no' || text === 'off') return false;
    return this.#refuse('true or false', value);
  }

  /** A list of texts. */
  texts(): string[] | null {
    const { value } = this;
    const isList = Array.isArray(value) && value.every((item) => typeof item === 'string');
    return isList ? value : this.#refuse('a list of texts', value);
  }

  #read(): unknown {
    const name = parseReference(this.value);
    if (name === null) return this.value;
    const value = this.#source.variables.read(name);
    if (value === undefined) {
      this.unsupported(`The variable ${name} is not set. Set it, and run the import again.`);
      return undefined;
    }
    return value;
  }

  #refuse(expected: string, value: unknown): null {
    if (value !== undefined && value !== null) this.unsupported(`Expected ${expected}. The value is left out.`);
    return null;
  }

  #report(outcome: Outcome, detail: string | null): void {
    for (const [field] of this.#fields()) this.#source.report.set(field, outcome, detail);
  }

  #fields(): Iterable<[field: string, value: unknown]> {
    return this.value === undefined ? [] : listFields(this.value, this.path);
  }
}
