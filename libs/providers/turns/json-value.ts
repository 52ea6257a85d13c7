/** Any JSON object. */
export type Json = Readonly<Record<string, unknown>>;

/** The members of a JSON object; an empty object for any other value. */
export function toRecord(value: unknown): Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Json) : {};
}

/** The items of a list, with `{}` for those that are not objects, so that positions stay; empty for any other value. */
export function toRecords(value: unknown): readonly Json[] {
  return Array.isArray(value) ? value.map(toRecord) : [];
}

/** The value of a JSON text; undefined if it is not valid JSON. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function asText(value: unknown): string | undefined {
  return typeof value === 'string' ? value : undefined;
}

/** A finite number. */
export function asNumber(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}

/** A token count; 0 for anything else. */
export function asCount(value: unknown): number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : 0;
}

/** The object without undefined members, so that they do not count as sent. */
export function compact(members: Json): Record<string, unknown> {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined));
}
