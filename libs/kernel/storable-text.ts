/**
 * Makes text storable in Postgres, as text and in jsonb: lone surrogates and U+0000 become U+FFFD. Cut a text before
 * calling this, because a cut can leave half a surrogate pair.
 */
export const toStorableText = (text: string): string => text.toWellFormed().replaceAll('\0', '\u{FFFD}');
