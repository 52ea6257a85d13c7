import type { IncomingHttpHeaders } from 'node:http';

/** Returns the gateway key in its own header; null when it is absent or empty. */
export const readGatewayKeyHeader = (headers: IncomingHttpHeaders): string | null =>
  readHeader(headers, 'x-gateway-api-key', 'x-portkey-api-key');

/** The token of `Authorization: Bearer`; null for other schemes. */
export function readBearerToken(headers: IncomingHttpHeaders): string | null {
  const value = headers.authorization;
  if (value === undefined || value.length <= 7 || value.slice(0, 7).toLowerCase() !== 'bearer ') return null;
  return value.slice(7).trim() || null;
}

/**
 * Returns the gateway key of a request: from its own header, else the bearer token, else the headers in which the SDKs
 * of Azure (`api-key`), Anthropic (`x-api-key`) and Google (`x-goog-api-key`) send their key. None of these headers is
 * forwarded to a provider.
 */
export const readGatewayKey = (headers: IncomingHttpHeaders): string | null =>
  readGatewayKeyHeader(headers) ??
  readBearerToken(headers) ??
  readHeader(headers, 'api-key', 'x-api-key') ??
  readHeader(headers, 'x-goog-api-key', 'x-goog-api-key');

/**
 * Returns a header by its name or its alias; null when absent or empty. Takes whole names, because building one from a
 * prefix costs more than the lookup.
 */
export function readHeader(headers: IncomingHttpHeaders, name: string, alias: string): string | null {
  const value = headers[name] || headers[alias];
  return typeof value === 'string' && value !== '' ? value : null;
}
