import { type Json, asText, parseJson } from '../turns/json-value.ts';

/** A member's name, or an index in a list. */
export type Step = string | number;

/** A piece of a string, or the JSON text of another value. */
export type PieceValue = { isString: boolean; text: string };

/** One piece of a call's arguments, and where it belongs. */
export type PartialArg = {
  path: readonly [Step, ...Step[]];
  /** null: it only ends the previous value. */
  value: PieceValue | null;
  willContinue: boolean;
};

const depthMax = 100;
// RFC 9535, 2.3: `.name`, `[0]`, `['name']`, `["name"]`. Names after a dot can have more characters than in the RFC,
// because clients choose the names of properties (`$.first-name`).
const segment = /\.([^.[\]]+)|\[(0|[1-9]\d{0,8})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]/suy;

/**
 * Reads an element of `functionCall.partialArgs` (cloud.google.com/vertex-ai, REST, PartialArg): `jsonPath`, one of
 * `stringValue`, `numberValue`, `boolValue` and `nullValue`, and `willContinue`. null if it is invalid.
 */
export function readPartialArg(raw: Json): PartialArg | null {
  const path = readPath(asText(raw['jsonPath']) ?? '');
  const value = readValue(raw);
  if (path === null || value === undefined) return null;
  return { path, value, willContinue: raw['willContinue'] === true };
}

function readPath(text: string): PartialArg['path'] | null {
  if (!text.startsWith('$')) return null;
  const steps: Step[] = [];
  let at = 1;
  while (at < text.length) {
    segment.lastIndex = at;
    const [whole, plain, index, single, double] = segment.exec(text) ?? [];
    if (whole === undefined || steps.length === depthMax) return null;
    const name = plain ?? unquote(single?.replaceAll(/\\'|"/g, (found) => (found === '"' ? '\\"' : "'")) ?? double);
    if (index === undefined && name === null) return null;
    steps.push(name ?? Number(index));
    at += whole.length;
  }
  const [first, ...rest] = steps;
  return first === undefined ? null : [first, ...rest];
}

/** A quoted name has the escapes of JSON. */
const unquote = (written: string | undefined): string | null =>
  written === undefined ? null : (asText(parseJson(`"${written}"`)) ?? null);

/** undefined: the value is invalid. */
function readValue(raw: Json): PieceValue | null | undefined {
  const { stringValue, numberValue, boolValue } = raw;
  if (stringValue !== undefined) {
    return typeof stringValue === 'string' ? { isString: true, text: stringValue } : undefined;
  }
  if (numberValue !== undefined) {
    return Number.isFinite(numberValue) ? { isString: false, text: JSON.stringify(numberValue) } : undefined;
  }
  if (boolValue !== undefined) {
    return typeof boolValue === 'boolean' ? { isString: false, text: JSON.stringify(boolValue) } : undefined;
  }
  // Protobuf's JSON has null; the types of some clients have the name NULL_VALUE.
  return 'nullValue' in raw ? { isString: false, text: 'null' } : null;
}
