/**
 * What Postgres takes as text and in jsonb: half a character and U+0000 become U+FFFD. A text that has to be cut is cut
 * before, since that may leave half a character.
 */
export const toStorableText = (text: string): string => text.toWellFormed().replaceAll('\0', '\u{FFFD}');
