import type { Flaw } from '#apps/simulator/wire/check-shape.ts';
import { Refusal } from '#apps/simulator/wire/wire-format.ts';

/** A ValidationException. */
export function refuse(message: string): never {
  throw new Refusal({ status: 400, message, code: 'ValidationException' });
}

export function refuseFlaw({ kind, path, message }: Flaw): never {
  const parents = kind === 'unknown' ? path.slice(0, -1) : path;
  const at = `#${parents.map((step) => `/${step}`).join('')}`;
  if (kind === 'unknown') {
    return refuse(
      `Malformed input request: ${at}: extraneous key [${path.at(-1)}] is not permitted, please reformat your input and try again.`,
    );
  }
  const what = kind === 'missing' ? 'Member must not be null' : message;
  return refuse(`1 validation error detected: Value at '${path.join('.')}' failed to satisfy constraint: ${what}`);
}
