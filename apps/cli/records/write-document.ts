type Replacer = (name: unknown, value: unknown) => unknown;

// The library changes some texts that it folds, and loses the spaces of blocks that contain only spaces and line ends.
const unfolded = {
  blockQuote: 'literal',
  lineWidth: 0,
  doubleQuotedMinMultiLineLength: Number.POSITIVE_INFINITY,
} as const;
const onlySpaces = /^\s+$/;

/** The YAML document of a value. `replacer`: as for JSON.stringify. */
export async function writeDocument(value: unknown, replacer?: Replacer): Promise<string> {
  const { Document, visit } = await import('yaml');
  const document = new Document(value, replacer ?? null);
  visit(document, {
    Scalar(_key, scalar) {
      if (typeof scalar.value === 'string' && onlySpaces.test(scalar.value)) scalar.type = 'QUOTE_DOUBLE';
    },
  });
  return document.toString(unfolded);
}
