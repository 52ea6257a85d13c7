/**
 * Returns a value in the JSON Canonicalization Scheme (RFC 8785): members sorted by UTF-16 code units, no white space,
 * numbers and strings as ECMAScript writes them. As in JSON.stringify, members that are undefined are left out, and a
 * value with `toJSON` is replaced by the result of that method. Throws TypeError for values that JSON cannot represent
 * exactly, or that Postgres cannot store: a number that is not finite, half a surrogate pair, U+0000, a bigint, a function.
 */
export function canonicalJson(value: unknown): string {
  if (typeof value === 'string') return canonicalText(value);
  if (typeof value === 'object') return value === null ? 'null' : canonicalObject(value);
  if (typeof value === 'boolean' || (typeof value === 'number' && Number.isFinite(value))) return String(value);
  const what = typeof value === 'number' ? `the number ${value}` : `a value of type ${typeof value}`;
  throw new TypeError(`${what} has no canonical form`);
}

function canonicalObject(value: object): string {
  if ('toJSON' in value && typeof value.toJSON === 'function') return canonicalJson(value.toJSON());
  if (Array.isArray(value)) return `[${value.map((item: unknown) => canonicalJson(item ?? null)).join(',')}]`;
  const members = value as Record<string, unknown>;
  let text = '';
  // The default sort order is the one that RFC 8785 requires.
  for (const name of Object.keys(members).sort()) {
    const member = members[name];
    if (member !== undefined) text += `${text === '' ? '' : ','}${canonicalText(name)}:${canonicalJson(member)}`;
  }
  return `{${text}}`;
}

function canonicalText(text: string): string {
  // Most texts need no escape, and JSON.stringify would be the most expensive step here.
  if (/^[ !#-[\]-~]*$/.test(text)) return `"${text}"`;
  if (text.includes('\0')) throw new TypeError('a text with U+0000 cannot be stored');
  if (!text.isWellFormed()) throw new TypeError('a text with half a surrogate pair has no canonical form');
  return JSON.stringify(text);
}
