/** A path segment with its %XX read; as it is when they are malformed. */
export function unescapePath(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}
