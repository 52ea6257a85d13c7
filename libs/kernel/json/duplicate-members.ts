import { endOfString, jsonBytes, nextMark } from './json-scan.ts';

const { closeBrace, closeBracket, comma, openBrace, openBracket, quote } = jsonBytes;

/**
 * Counts the members of all objects in a parsed JSON value. The text has more (`measureJson`) exactly when one of its objects
 * has two members of the same name, of which JSON.parse keeps the last. The depth of the value must be bounded.
 */
export function countMembers(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  let members = 0;
  if (Array.isArray(value)) {
    for (const element of value as unknown[]) {
      if (typeof element === 'object' && element !== null) members += countMembers(element);
    }
    return members;
  }
  // JSON.parse gives objects no other properties than their own.
  // oxlint-disable-next-line guard-for-in
  for (const name in value) {
    members += 1;
    const member = (value as Record<string, unknown>)[name];
    if (typeof member === 'object' && member !== null) members += countMembers(member);
  }
  return members;
}

type Container = { names: Set<string> | null; key: string | number };

/** The path to the first member whose name appeared before in the same object, or null. The text must be valid JSON. */
export function findDuplicateMember(bytes: Buffer): (string | number)[] | null {
  const open: Container[] = [];
  let expectsName = false;
  for (let at = nextMark(bytes, 0); at < bytes.length; at = nextMark(bytes, at + 1)) {
    const inside = open.at(-1);
    switch (bytes[at] as number) {
      case quote: {
        const end = endOfString(bytes, at);
        if (expectsName && inside?.names) {
          const raw = bytes.toString('utf8', at + 1, end);
          const name = raw.includes('\\') ? (JSON.parse(`"${raw}"`) as string) : raw;
          inside.key = name;
          if (inside.names.has(name)) return open.map(({ key }) => key);
          inside.names.add(name);
          expectsName = false;
        }
        at = end;
        break;
      }
      case openBrace:
        open.push({ names: new Set(), key: '' });
        expectsName = true;
        break;
      case openBracket:
        open.push({ names: null, key: 0 });
        expectsName = false;
        break;
      case comma:
        expectsName = inside?.names !== null;
        if (typeof inside?.key === 'number') inside.key += 1;
        break;
      case closeBrace:
      case closeBracket:
        open.pop();
        break;
      default:
    }
  }
  return null;
}
