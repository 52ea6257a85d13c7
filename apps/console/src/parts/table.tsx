import { useVirtualizer } from '@tanstack/react-virtual';
import { useEffect, useRef, useState, type ReactNode } from 'react';
import { count } from '../format.ts';

export type Column<Row> = {
  head: string;
  cell: (row: Row) => ReactNode;
  /** Numbers are right-aligned, so that their digits line up. */
  isNumber?: boolean;
  /** Names that people and programs choose can have hundreds of characters without a space, so they can wrap anywhere. */
  isLong?: boolean;
};

type Props<Row> = {
  /** For screen readers. */
  label: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  keyOf: (row: Row) => string;
  chosen?: string | undefined;
};

/** A table for a page of records. The server sorts, filters and pages, so a table here only has columns and rows. */
export function DataTable<Row>({ label, columns, rows, keyOf, chosen }: Props<Row>) {
  return (
    <div className="table-wrap" tabIndex={0} role="region" aria-label={label}>
      <table>
        <Head columns={columns} />
        <tbody>
          {rows.map((row) => (
            <tr key={keyOf(row)} className={keyOf(row) === chosen ? 'chosen' : undefined}>
              <Cells columns={columns} row={row} />
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Up to this many rows can be seen at a glance. */
const glanceRows = 20;

/**
 * A table of all records of one kind. A long table has its own scroll bar and a search, which uses the text that `textOf`
 * returns for each row.
 */
export function RecordTable<Row>({
  textOf,
  total,
  ...props
}: Props<Row> & {
  textOf: (row: Row) => string;
  /** The number of existing records, including those that were not read. */
  total: number;
}) {
  const [words, setWords] = useState('');
  const { label, rows } = props;
  if (rows.length <= glanceRows) return <DataTable {...props} />;
  const wanted = words.trim().toLowerCase();
  const found = wanted === '' ? rows : rows.filter((row) => textOf(row).toLowerCase().includes(wanted));
  return (
    <>
      <div className="row find">
        <input
          type="search"
          aria-label={`Find in ${label}`}
          placeholder="Find"
          value={words}
          onChange={(event) => setWords(event.target.value)}
        />
        <span className="small muted" role="status">
          {count(found.length)} of {count(total)}
          {total > rows.length ? `; only the newest ${count(rows.length)} are searched` : ''}
        </span>
      </div>
      <LongTable {...props} rows={found} />
    </>
  );
}

const rowPixels = 36;

/**
 * A table of any length that renders only the visible rows. `onEnd` is called when the user gets near the last loaded row,
 * to read the next page. Rows differ in height, so they are measured.
 */
export function LongTable<Row>({ label, columns, rows, keyOf, chosen, onEnd }: Props<Row> & { onEnd?: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => rowPixels,
    overscan: 12,
  });
  const shown = virtual.getVirtualItems();
  const lastShown = shown.at(-1)?.index ?? -1;
  useEffect(() => {
    if (rows.length > 0 && lastShown >= rows.length - 20) onEnd?.();
  }, [lastShown, rows.length, onEnd]);
  const before = shown[0]?.start ?? 0;
  const after = virtual.getTotalSize() - (shown.at(-1)?.end ?? 0);
  return (
    <div className="virtual" ref={box} tabIndex={0} role="region" aria-label={label}>
      <table aria-rowcount={rows.length}>
        <Head columns={columns} />
        <tbody>
          {before > 0 ? <Gap pixels={before} columns={columns.length} /> : null}
          {shown.map(({ index }) => {
            const row = rows[index];
            if (row === undefined) return null;
            return (
              <tr
                key={keyOf(row)}
                ref={virtual.measureElement}
                data-index={index}
                aria-rowindex={index + 1}
                className={keyOf(row) === chosen ? 'chosen' : undefined}
              >
                <Cells columns={columns} row={row} />
              </tr>
            );
          })}
          {after > 0 ? <Gap pixels={after} columns={columns.length} /> : null}
        </tbody>
      </table>
    </div>
  );
}

const Head = <Row,>({ columns }: { columns: readonly Column<Row>[] }) => (
  <thead>
    <tr>
      {columns.map(({ head, isNumber }) => (
        <th key={head} scope="col" className={isNumber === true ? 'num' : undefined}>
          {head}
        </th>
      ))}
    </tr>
  </thead>
);

const Cells = <Row,>({ columns, row }: { columns: readonly Column<Row>[]; row: Row }) => (
  <>
    {columns.map(({ head, cell, isNumber, isLong }) => (
      <td key={head} className={isNumber === true ? 'num' : isLong === true ? 'long' : undefined}>
        {cell(row)}
      </td>
    ))}
  </>
);

const Gap = ({ pixels, columns }: { pixels: number; columns: number }) => (
  <tr aria-hidden="true">
    <td colSpan={columns} style={{ height: pixels, padding: 0, border: 0 }} />
  </tr>
);
