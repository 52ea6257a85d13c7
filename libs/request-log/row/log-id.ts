import { randomFillSync } from 'node:crypto';

// A row's ID is a UUIDv7 (RFC 9562 5.7), shown as `log_` and its 32 hex digits. Its first 48 bits are the time of the
// record, which also determines its partition.

/** Returns a new ID; `sequence` orders the rows of one process inside a millisecond. */
export function newLogUuid(recordedAtMs: number, sequence: number): string {
  // Version and variant, 12 + 14 + 6 bits of the sequence, 42 random bits. Built by hand because each call needs one, and the
  // uuid package takes four times as long.
  if (offset + 16 > pool.length) {
    randomFillSync(pool);
    offset = 0;
  }
  const at = offset;
  offset += 16;
  pool.writeUIntBE(recordedAtMs, at, 6);
  pool.writeUInt16BE(0x7000 | (sequence >>> 20), at + 6);
  pool.writeUInt16BE(0x8000 | ((sequence >>> 6) & 0x3fff), at + 8);
  pool.writeUInt8(((sequence & 0x3f) << 2) | ((pool[at + 10] ?? 0) & 3), at + 10);
  const hex = pool.toString('hex', at, at + 16);
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}

// Random bytes are drawn in bulk: one system call per 256 ids.
const pool = Buffer.alloc(256 * 16);
let offset = pool.length;

let dayStartMs = Number.NaN;
let day = '';

/** The UTC day of a time, `YYYY-MM-DD`, which is its partition key. Rows of one day share the string. */
export function utcDay(timeMs: number): string {
  const startMs = timeMs - (timeMs % 86_400_000);
  if (startMs !== dayStartMs) {
    day = new Date(timeMs).toISOString().slice(0, 10);
    dayStartMs = startMs;
  }
  return day;
}

/** The time when the row with this UUID was recorded, in epoch milliseconds. */
export function getLogUuidTime(uuid: string): number {
  return Number.parseInt(uuid.slice(0, 8) + uuid.slice(9, 13), 16);
}

/** The smallest UUIDv7 of a millisecond: rows recorded earlier have smaller IDs, all others larger ones. */
export function lowestLogUuid(timeMs: number): string {
  const hex = timeMs.toString(16).padStart(12, '0');
  return `${hex.slice(0, 8)}-${hex.slice(8)}-7000-8000-000000000000`;
}

/** The first moment after the last four-digit year; no id of ours is later. */
const timeEndMs = Date.UTC(10_000, 0, 1);

export function toLogId(uuid: string): string {
  return `log_${uuid.replaceAll('-', '')}`;
}

/** The UUID of a public id; undefined if it is not one of ours. */
export function fromLogId(id: string): string | undefined {
  const parts = /^log_([0-9a-f]{8})([0-9a-f]{4})(7[0-9a-f]{3})([89ab][0-9a-f]{3})([0-9a-f]{12})$/.exec(id);
  const uuid = parts?.slice(1).join('-');
  return uuid !== undefined && getLogUuidTime(uuid) < timeEndMs ? uuid : undefined;
}
