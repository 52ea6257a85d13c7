import type { LogRow } from '#libs/request-log/row/log-entry.ts';
import { RowSealer, type SealedRows } from '#libs/request-log/write/sealed-rows.ts';

/** Seals rows as the request log does. */
export function sealRows(rows: readonly LogRow[], processId: string): SealedRows {
  const sealer = new RowSealer(processId);
  for (const row of rows) {
    const { recorded_on, id, sequence } = row;
    sealer.add(row, { recorded_on, id, sequence });
  }
  return sealer.seal();
}
