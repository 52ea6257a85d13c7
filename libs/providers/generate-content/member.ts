import type { Json } from '../turns/json-value.ts';

const snakeCase = (name: string): string => name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

/** A member in either spelling, because Google's API accepts both (`inlineData`, `inline_data`). null counts as absent. */
export const readMember = (object: Json, name: string): unknown => object[name] ?? object[snakeCase(name)] ?? undefined;

/** The names of the members that are not in `known`, in camel case, without those that are null. */
export const otherMembers = (object: Json, known: ReadonlySet<string>): string[] =>
  Object.keys(object)
    .filter((name) => object[name] !== null)
    .map((name) => name.replaceAll(/_([a-z])/g, (_match, letter: string) => letter.toUpperCase()))
    .filter((name) => !known.has(name));

/** Google reads a single object where a list is expected. */
export const listOf = (value: unknown): readonly unknown[] =>
  Array.isArray(value) ? value : value === undefined || value === null ? [] : [value];
