import pg from 'pg';

const oid = { int8: 20, int8Array: 1016, date: 1082, dateArray: 1182 } as const;

/**
 * A bigint column as a number. Positions, byte counts and token counts stay far below 2^53. A larger value is a bug,
 * which must cause an error instead of being rounded.
 */
function toSafeInteger(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new RangeError(`The bigint ${text} does not fit a JavaScript number.`);
  return value;
}

const textArray = 1009 as Parameters<typeof pg.types.getTypeParser>[0];
const parseTextArray = pg.types.getTypeParser(textArray, 'text') as (text: string) => (string | null)[];

/**
 * How values of Postgres are converted, for our pools only (nothing global is changed): int8 → number (an unsafe integer is
 * an error); date → 'YYYY-MM-DD' (pg would use local midnight, which is another day elsewhere); timestamptz → Date;
 * numeric, xid8 → text; jsonb → parsed; bytea → Buffer.
 */
export const valueTypes: pg.CustomTypesConfig = {
  // With pg's default settings the result format is always text; pg handles binary itself.
  getTypeParser: ((typeId: number, format: 'text' | 'binary' = 'text') => {
    if (format === 'text') {
      if (typeId === oid.int8) return toSafeInteger;
      if (typeId === oid.int8Array) {
        return (text: string) => parseTextArray(text).map((item) => (item === null ? null : toSafeInteger(item)));
      }
      if (typeId === oid.date) return (text: string) => text;
      if (typeId === oid.dateArray) return parseTextArray;
    }
    return pg.types.getTypeParser(typeId, format);
  }) as typeof pg.types.getTypeParser,
};
