import { NotEncodableError } from './insert-rows.ts';
import { CopyText, readLines, toArrayText, type Elements, type Field } from './copy-text.ts';
import { getIdRange, type IdRange } from './log-change.ts';
import { packColumns, packRows, unpackRows, type LogPack, type RowsAndPacks } from './pack-rows.ts';
import {
  boundEntry,
  boundText,
  entrySizeBytes,
  rowColumns,
  type LogRow,
  type RequestLogEntry,
  type RowPosition,
} from '../row/log-entry.ts';

/**
 * Rows on their way into the log, outside of V8's heap. As objects, thousands of them would live just long enough to
 * reach the old generation, which cost more than everything else. `copyData` is two CopyData messages (PostgreSQL
 * documentation, "Message Flow"), of which either can be empty: the rows, and the packs of the other rows. It is null
 * if one of the rows cannot be written as text.
 */
export type SealedRows = {
  readonly count: number;
  /** Their memory, in bytes. */
  readonly sizeBytes: number;
  /** `YYYY-MM-DD` of each partition that they belong to. */
  readonly days: readonly string[];
  /** The lowest and the highest ID of the rows. */
  readonly ids: IdRange;
  readonly copyData: Buffer | null;
  /** What is written, as objects, for all other uses than COPY. */
  readonly content: () => RowsAndPacks;
};

/** All rows of a seal, those of its packs included. */
export const readAllRows = ({ content }: SealedRows): LogRow[] => unpackAll(content());

const unpackAll = ({ rows, packs }: RowsAndPacks): LogRow[] =>
  [...rows, ...packs.flatMap(unpackRows)].toSorted(bySequence);

const bySequence = (a: LogRow, b: LogRow): number => a.sequence - b.sequence;

/**
 * Collects rows, and seals them. The row of a live call is written as text immediately, and never exists as an object
 * with its position. Lines of batches stay objects until the seal, which makes packs of them.
 */
export class RowSealer {
  /** The number of rows since the last seal. */
  count = 0;
  readonly #processId: string;
  readonly #rows = new CopyText();
  readonly #packs = new CopyText();
  #lines: LogRow[] = [];
  /** Rows with a value that cannot be represented in JSON either. The INSERT will report it. */
  #unwritable: LogRow[] = [];
  #objectBytes = 0;
  #days: string[] = [];
  #ids: IdRange = { first: '', last: '' };

  constructor(processId: string) {
    this.#processId = processId;
  }

  /** The memory of the rows since the last seal, in bytes. */
  get sizeBytes(): number {
    return this.#rows.length + this.#objectBytes;
  }

  /** Never throws. */
  add(entry: RequestLogEntry, position: RowPosition): void {
    const { id, recorded_on: day } = position;
    if (this.count === 0) this.#ids = { first: id, last: id };
    else if (id > this.#ids.last) this.#ids.last = id;
    else if (id < this.#ids.first) this.#ids.first = id;
    if (!this.#days.includes(day)) this.#days.push(day);
    this.count += 1;
    if (entry.kind !== 'batch' && this.#write(this.#rows, writeRow, entry, position)) return;
    // The spread must come first: only then does the runtime copy the entry as a whole instead of column by column.
    const row = { ...boundEntry(entry), ...position };
    (entry.kind === 'batch' ? this.#lines : this.#unwritable).push(row);
    this.#objectBytes += entrySizeBytes(row);
  }

  /** Seals the rows that were added since the last seal. Never throws. */
  seal(): SealedRows {
    const { rows, packs } = packRows(this.#lines);
    for (const row of rows) if (!this.#write(this.#rows, writeRow, row, row)) this.#unwritable.push(row);
    for (const pack of packs)
      if (!this.#write(this.#packs, writePack, pack, pack)) this.#unwritable.push(...unpackRows(pack));
    const data = toMessages([this.#rows, this.#packs]);
    const unwritable = this.#unwritable;
    const isWritable = unwritable.length === 0;
    const kept = isWritable
      ? null
      : { rows: [...unpackAll(decode(data)), ...unwritable].toSorted(bySequence), packs: [] };
    const sealed = {
      count: this.count,
      sizeBytes: isWritable ? data.length : this.sizeBytes,
      days: this.#days,
      ids: this.#ids,
      copyData: isWritable ? data : null,
      content: () => kept ?? decode(data),
    };
    this.#rows.truncate(0);
    this.#packs.truncate(0);
    this.#lines = [];
    this.#unwritable = [];
    this.#objectBytes = 0;
    this.#days = [];
    this.count = 0;
    return sealed;
  }

  /** Returns whether the value could be written. */
  #write<Value>(text: CopyText, write: WriteLine<Value>, value: Value, position: object): boolean {
    const start = text.length;
    try {
      text.start(this.#processId);
      write(text, value, position);
      text.end();
      return true;
    } catch {
      text.truncate(start);
      return false;
    }
  }
}

/** Restores rows from the `copyData` of an earlier seal, by this or another process. */
export function unsealRows(copyData: Buffer): SealedRows {
  const { rows, packs } = decode(copyData);
  const ids = [...rows, ...packs.flatMap(({ first_id, last_id }) => [{ id: first_id }, { id: last_id }])];
  return {
    count: packs.reduce((sum, { lines }) => sum + lines, rows.length),
    sizeBytes: copyData.length,
    days: [...new Set([...rows, ...packs].map((row) => row.recorded_on))],
    ids: getIdRange(ids),
    copyData,
    content: () => decode(copyData),
  };
}

/** The head of a CopyData message: its letter and its length, which includes itself but not the letter. */
export const messageHeadBytes = 5;
/** The bytes of a CopyData message that begins with `head`. */
export const messageBytes = (head: Buffer): number => 1 + head.readUInt32BE(1);

/** The two messages of a seal: rows and packs. */
function splitMessages(copyData: Buffer): [rows: Buffer, packs: Buffer] {
  const packsAt = messageBytes(copyData);
  return [copyData.subarray(0, packsAt), copyData.subarray(packsAt)];
}

/** The messages with these lines. A separate copy: a slice of the runtime's pool would keep the whole pool alive. */
function toMessages(texts: readonly CopyText[]): Buffer {
  const data = Buffer.allocUnsafeSlow(texts.reduce((sum, { length }) => sum + messageHeadBytes + length, 0));
  let at = 0;
  for (const text of texts) {
    data.write('d', at);
    data.writeUInt32BE(text.length + 4, at + 1);
    text.copyTo(data, at + messageHeadBytes);
    at += messageHeadBytes + text.length;
  }
  return data;
}

/** Writes all values of a line but the first. `position` has those that the entry of a row does not have. */
type WriteLine<Value> = (text: CopyText, value: Value, position: object) => void;

const rowFields: readonly Field[] = rowColumns.map(([name, column]) => ({ ...column, name, isArray: false }));
const positions: ReadonlySet<string> = new Set(['recorded_on', 'id', 'sequence'] satisfies (keyof RowPosition)[]);

/** Compiled, like the code that fills entries: looking up each column by its name takes as long as writing it. */
// oxlint-disable-next-line typescript/no-implied-eval -- the names come from the list of columns
const writeRow = new Function(
  'bound',
  `return (text, entry, position) => { ${rowFields
    .map(({ name, type }) => {
      if (positions.has(name)) return `text.field(position.${name});`;
      return type === 'text' ? `text.field(bound(entry.${name}));` : `text.field(entry.${name});`;
    })
    .join(' ')} }`,
)(boundText) as WriteLine<RequestLogEntry>;

const writePack: WriteLine<LogPack> = (text, pack) => {
  for (const { name, isArray } of packColumns)
    text.field(isArray ? toArrayText(pack[name] as Elements | null) : pack[name]);
};

/** What `toMessages` wrote. */
function decode(copyData: Buffer): RowsAndPacks {
  const [rows, packs] = splitMessages(copyData).map((message) => message.toString('utf8', messageHeadBytes));
  return {
    rows: readLines(rows ?? '', rowFields) as LogRow[],
    packs: readLines(packs ?? '', packColumns) as LogPack[],
  };
}

/** The COPYs of a group: for each table, its messages. Throws NotEncodableError. */
export function toCopies(
  group: readonly SealedRows[],
): { table: 'request_log_row' | 'request_log_pack'; pieces: Buffer[] }[] {
  const messages = group.map(({ copyData }) => {
    if (copyData === null) throw new NotEncodableError('a request-log row cannot be serialised');
    return splitMessages(copyData);
  });
  const copies = [
    { table: 'request_log_row' as const, pieces: messages.map(([rows]) => rows) },
    { table: 'request_log_pack' as const, pieces: messages.map(([, packs]) => packs) },
  ];
  return copies.flatMap(({ table, pieces }) => {
    const filled = pieces.filter((piece) => piece.length > messageHeadBytes);
    return filled.length === 0 ? [] : [{ table, pieces: filled }];
  });
}
