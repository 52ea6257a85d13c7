/** A JSON object of which nothing is known. */
export type Json = Readonly<Record<string, unknown>>;

/** A JSON object's members; nothing of anything else. */
export function toRecord(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {};
}

/** A list's items, those that are no object as empty ones, so that positions stay; nothing of anything else. */
export function toRecords(value: unknown): readonly Json[] {
  return Array.isArray(value) ? value.map(toRecord) : [];
}

export function textOf(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

/** A finite number. */
export function numberOf(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}

/** A token count; what cannot be one counts as 0. */
export function countOf(value: unknown): number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : 0;
}

/** Without the members that are undefined, so that they do not count as sent. */
export function compact(members: Json): Record<string, unknown> {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined));
}
