type UrlParts = { origin: string; folder: string; search: string };
const known = new WeakMap<URL, UrlParts>();

/** A URL takes its parts out of its text at each look; the same few are called over and over. */
export function partsOf(url: URL): UrlParts {
  let parts = known.get(url);
  if (parts === undefined) {
    parts = { origin: url.origin, folder: url.pathname.replace(/\/+$/, ''), search: url.search };
    known.set(url, parts);
  }
  return parts;
}
