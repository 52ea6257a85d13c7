import { stringify } from 'csv-stringify/sync';
import { ByteWriter, ParquetWriter, schemaFromColumnData } from 'hyparquet-writer';
import type { ExportField } from '#libs/contracts/logs/log-exports.ts';
import { exportColumns, type ExportedRow } from './export-columns.ts';

/** Encodes the rows of one file, which arrive in groups. */
export type ExportEncoder = {
  encode(rows: readonly ExportedRow[]): Uint8Array;
  /** Returns the bytes after the last rows. */
  end(): Uint8Array;
};

type Format = {
  contentType: string;
  /** Whether separately encoded files can be concatenated into one file. */
  isInParts: boolean;
  /** `isFirst`: no other part of the file was written before. */
  open(fields: readonly ExportField[], isFirst: boolean): ExportEncoder;
};

const nothing = new Uint8Array();

export const exportFormats: Readonly<Record<'ndjson' | 'csv' | 'parquet', Format>> = {
  ndjson: {
    contentType: 'application/x-ndjson',
    isInParts: true,
    open: (fields) => ({
      encode: (rows) => {
        const lines = rows.map((row) =>
          JSON.stringify(Object.fromEntries(fields.map((field) => [field, exportColumns[field].read(row)]))),
        );
        return Buffer.from(lines.map((line) => `${line}\n`).join(''));
      },
      end: () => nothing,
    }),
  },
  csv: {
    contentType: 'text/csv; charset=utf-8',
    isInParts: true,
    open: (fields, isFirst) => {
      let header = isFirst;
      const encode = (rows: readonly ExportedRow[]): Uint8Array => {
        const records = rows.map((row) => fields.map((field) => exportColumns[field].read(row)));
        const text = stringify(records, {
          header,
          columns: [...fields],
          // A spreadsheet would execute a text that begins like a formula.
          escape_formulas: true,
          cast: { boolean: String },
        });
        header = false;
        return Buffer.from(text);
      };
      return { encode, end: () => (header ? encode([]) : nothing) };
    },
  },
  parquet: {
    contentType: 'application/vnd.apache.parquet',
    // The file ends with a directory of the whole file.
    isInParts: false,
    open: (fields) => openParquet(fields),
  },
};

function openParquet(fields: readonly ExportField[]): ExportEncoder {
  const columnsOf = (rows: readonly ExportedRow[]) =>
    fields.map((name) => {
      const { type, read } = exportColumns[name];
      const data = rows.map((row) => read(row));
      return { name, data, type, nullable: true, offsetIndex: false };
    });
  const writer = new ByteWriter();
  const file = new ParquetWriter({ writer, schema: schemaFromColumnData({ columnData: columnsOf([]) }) });
  const take = (): Uint8Array => {
    const bytes = writer.getBytes().slice();
    writer.index = 0; // The offsets in the file continue.
    return bytes;
  };
  return {
    encode(rows) {
      void file.write({ columnData: columnsOf(rows), rowGroupSize: Math.max(1, rows.length) });
      return take();
    },
    end() {
      void file.finish();
      return take();
    },
  };
}
