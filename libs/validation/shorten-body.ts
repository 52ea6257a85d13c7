/** Longer than any list that a contract allows, so that one which is too long still is. */
const keptMin = 2_100;

/** Lists of texts and tokens, of which the contract tells one problem however long they are, and their length. */
const wordedOnce: ReadonlySet<string> = new Set(['input', 'prompt']);

/**
 * A copy of a refused body without most of its long lists, for the words about what is wrong: the contract collects every
 * problem of every element, which takes a second where 99,000 are bad. `at`: where the first problem is, as a JSON
 * pointer; that place is kept. The body itself when nothing is long. The depth of the body must be bounded.
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
  if (short !== body && wordedOnce.has(name)) changed[name] = own[name];
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

/** The one object whose members have names of the caller's and rules of the contract's. */
const biasName = 'logit_bias';

/** A part of a map with its member `key` in it; null when it is no map, or short. */
function shortenMap(map: unknown, key: string): object | null {
  if (typeof map !== 'object' || map === null || Array.isArray(map)) return null;
  const entries = Object.entries(map);
  if (entries.length <= keptMin) return null;
  return Object.fromEntries(entries.filter(([name], index) => index < keptMin || name === key));
}
