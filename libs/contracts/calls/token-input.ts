import { z } from 'zod';
import { kindOf, type Breach } from './describe-issue.ts';
import { addBreach } from '../scalars.ts';

const isToken = (value: unknown): boolean => Number.isInteger(value);

function kindOfItems(items: readonly unknown[]): 'strings' | 'tokens' | 'token arrays' | null {
  if (items.every((item) => typeof item === 'string')) return 'strings';
  if (items.every(isToken)) return 'tokens';
  return items.every((item) => Array.isArray(item) && item.length > 0 && item.every(isToken)) ? 'token arrays' : null;
}

function inputBreach(value: unknown, itemsMax: number): Breach | null {
  const breach = (code: string, text: (name: string) => string): Breach => ({
    path: [],
    code,
    text: (name) => text(name()),
  });
  if (value === undefined)
    return breach('missing_required_parameter', (name) => `Missing required parameter: ${name}.`);
  if (typeof value === 'string') return null;
  const expected = 'a string, an array of strings, an array of tokens, or an array of token arrays';
  if (!Array.isArray(value)) {
    return breach(
      'invalid_type',
      (name) => `Invalid type for ${name}: expected ${expected}, but got ${kindOf(value)} instead.`,
    );
  }
  if (value.length === 0) {
    return breach(
      'empty_array',
      (name) =>
        `Invalid ${name}: empty array. Expected an array with minimum length 1, but got an empty array instead.`,
    );
  }
  if (value.length > itemsMax) {
    return breach(
      'array_above_max_length',
      (name) =>
        `Invalid ${name}: array too long. Expected an array with maximum length ${itemsMax}, but got an array with length ${value.length} instead.`,
    );
  }
  if (kindOfItems(value) !== null) {
    const long = value.findIndex((item) => Array.isArray(item) && item.length > itemsMax);
    if (long < 0) return null;
    return {
      path: [long],
      code: 'array_above_max_length',
      text: (name) =>
        `Invalid ${name()}: array too long. Expected an array with maximum length ${itemsMax}, but got an array with length ${(value[long] as unknown[]).length} instead.`,
    };
  }
  return breach(
    'invalid_type',
    (name) => `Invalid type for ${name}: expected ${expected}, but got an array of other or mixed items instead.`,
  );
}

/**
 * The input to embed or complete: a string, strings, tokens or token arrays, each array of 1 to `itemsMax` items. One
 * pass instead of a union of four: a union tries and describes every branch, which for an array of 2,048 tokens is
 * thousands of issues before the third one fits.
 */
export const tokenInput = (itemsMax: number, nullable: boolean) =>
  z
    .unknown()
    .check((context) => {
      if (nullable && context.value === null) return;
      const breach = inputBreach(context.value, itemsMax);
      if (breach !== null) addBreach(context, breach);
    })
    .meta({
      anyOf: [
        ...(nullable ? [{ type: 'null' }] : []),
        { type: 'string' },
        { type: 'array', minItems: 1, ...atMost(itemsMax), items: { type: 'string' } },
        { type: 'array', minItems: 1, ...atMost(itemsMax), items: { type: 'integer' } },
        {
          type: 'array',
          minItems: 1,
          ...atMost(itemsMax),
          items: { type: 'array', minItems: 1, ...atMost(itemsMax), items: { type: 'integer' } },
        },
      ],
    });

const atMost = (itemsMax: number) => (Number.isFinite(itemsMax) ? { maxItems: itemsMax } : {});
