/** A path segment with %XX decoded; unchanged if they are malformed. */
export function unescapePath(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
