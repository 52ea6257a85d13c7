import type { Request } from 'express';
import { getCaller, getContext } from '#libs/http/request-context.ts';

type Metadata = Readonly<Record<string, string>>;

/** The metadata of a call: that of its key, overridden by its own x-gateway-metadata, except for locked members. */
export function getCallMetadata(request: Request): Metadata | null {
  const { metadata } = getContext(request);
  const { defaults } = getCaller(request);
  const merged =
    defaults.metadata === null || metadata === null
      ? (metadata ?? defaults.metadata)
      : { ...defaults.metadata, ...metadata };
  return withLocked(request, merged);
}

/** Metadata with the locked members of the caller. */
export function withLocked<Value>(
  request: Request,
  metadata: Readonly<Record<string, Value>> | null,
): Readonly<Record<string, Value | string>> | null {
  const { lockedMetadata } = getCaller(request).defaults;
  return lockedMetadata === undefined ? metadata : { ...metadata, ...lockedMetadata };
}
