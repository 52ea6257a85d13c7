/** Longer than any list that a contract allows, so that a list that is too long still is after shortening. */
const keptMin = 2_100;

/** Lists of texts or tokens. The contract reports one problem for all of such a list, and its length, so it is not shortened. */
const reportedOnce: ReadonlySet<string> = new Set(['input', 'prompt']);

/**
 * A copy of a rejected body with its long lists shortened, for the error message: the contract collects every problem
 * of every element, which takes a second for 99,000 invalid ones. `at` is a JSON pointer to the first problem, which
 * remains in the copy. Returns the body itself when nothing is long. The depth of the body must be bounded.
 */
export function shortenBody(body: unknown, at: string): unknown {
  const path = at
    .split('/')
    .slice(1)
    .map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'));
  const indexes = path.filter((part) => /^\d{1,9}$/.test(part));
  const short = shorten(body, Math.max(keptMin, ...indexes.map((index) => Number(index) + 1)));
  if (typeof short !== 'object' || short === null) return short;
  const own = body as Record<string, unknown>;
  const [name = '', key = ''] = path;
  const changed: Record<string, unknown> = {};
  if (short !== body && reportedOnce.has(name)) changed[name] = own[name];
  const map = shortenMap(own[biasName], key);
  if (map !== null) changed[biasName] = map;
  return Object.keys(changed).length === 0 ? short : { ...short, ...changed };
}

function shorten(value: unknown, kept: number): unknown {
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) {
    const list = value.length > kept ? value.slice(0, kept) : (value as unknown[]);
    const short = list.map((element) => shorten(element, kept));
    return list === value && short.every((element, index) => element === list[index]) ? value : short;
  }
  const entries = Object.entries(value);
  const short = entries.map(([name, member]) => [name, shorten(member, kept)] as const);
  return short.every(([, member], index) => member === entries[index]?.[1]) ? value : Object.fromEntries(short);
}

/** The only object whose member names are chosen by the caller and whose values are checked by the contract. */
const biasName = 'logit_bias';

/** A part of a map that includes its member `key`. null when it is not a map, or short. */
function shortenMap(map: unknown, key: string): object | null {
  if (typeof map !== 'object' || map === null || Array.isArray(map)) return null;
  const entries = Object.entries(map);
  if (entries.length <= keptMin) return null;
  return Object.fromEntries(entries.filter(([name], index) => index < keptMin || name === key));
}
