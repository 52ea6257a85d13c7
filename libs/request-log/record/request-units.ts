import { memberValue } from '#libs/kernel/json/json-members.ts';
import type { Units } from '#libs/prices/usage.ts';
import type { LoggedCall } from './logged-call.ts';

/**
 * Counts the items in a request that are charged per unit, so that the answer need not be read: images, and text to be
 * spoken. null: there are none, or the request is not valid JSON.
 */
export function countRequestUnits({ call }: Pick<LoggedCall, 'call'>): Units | null {
  const body = call.request?.body;
  if (body === undefined || body.length === 0) return null;
  switch (call.pathname) {
    case '/v1/images/generations': {
      // The defaults of OpenAI's API reference.
      const { n = 1, quality = 'standard', size = '1024x1024' } = readMembers(body, ['n', 'quality', 'size']);
      const count = typeof n === 'number' && Number.isSafeInteger(n) && n > 0 ? n : 1;
      return { images: { count, kind: `${String(quality)} ${String(size)}`.slice(0, kindLengthMax) } };
    }
    case '/v1/audio/speech': {
      const { input } = readMembers(body, ['input']);
      return typeof input === 'string' ? { characters: Array.from(input).length } : null;
    }
    default:
      return null;
  }
}

const kindLengthMax = 100;

/** Returns the members that are present and not null. */
function readMembers(body: Buffer, names: readonly string[]): Record<string, unknown> {
  try {
    return Object.fromEntries(
      names.flatMap((name) => {
        const raw = memberValue(body, name);
        const value: unknown = raw === undefined ? null : JSON.parse(raw.toString());
        return value === null ? [] : [[name, value]];
      }),
    );
  } catch {
    return {};
  }
}
