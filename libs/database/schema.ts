/** Kysely's table types. */
export type Database = Record<string, never>;
