const lookedMax = 100;

/** Makes room in a map that must not grow: drops the oldest entry that may go, or, when none of the first may, the oldest. */
export function forgetOne<Key, Value>(map: Map<Key, Value>, mayGo: (value: Value) => boolean): void {
  let looked = 0;
  for (const [key, value] of map) {
    if (mayGo(value)) return void map.delete(key);
    looked += 1;
    if (looked === lookedMax) break;
  }
  for (const key of map.keys()) return void map.delete(key);
}
