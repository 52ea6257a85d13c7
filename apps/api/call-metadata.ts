import type { Request } from 'express';
import { callerOf, contextOf } from '#libs/http/request-context.ts';

/** The metadata of a call for the request log: that of its key, overridden by its own x-gateway-metadata. */
export function metadataOf(request: Request): Readonly<Record<string, string>> | null {
  const { metadata } = contextOf(request);
  const { defaults } = callerOf(request);
  return defaults.metadata === null || metadata === null
    ? (metadata ?? defaults.metadata)
    : { ...defaults.metadata, ...metadata };
}
