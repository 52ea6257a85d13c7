/** A path segment with %XX decoded; unchanged if the escapes are malformed. */
export function unescapePath(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
