const lookedMax = 100;

/**
 * Makes room in a map of limited size: removes the oldest entry for which `mayGo` returns true, or the oldest entry if
 * it returns false for all of the first ones. Returns the removed value; undefined for an empty map.
 */
export function forgetOne<Key, Value>(map: Map<Key, Value>, mayGo: (value: Value) => boolean): Value | undefined {
  const forget = (key: Key, value: Value): Value => {
    map.delete(key);
    return value;
  };
  let looked = 0;
  for (const [key, value] of map) {
    if (mayGo(value)) return forget(key, value);
    looked += 1;
    if (looked === lookedMax) break;
  }
  for (const [key, value] of map) return forget(key, value);
  return undefined;
}
