import { GatewayError } from '#libs/kernel/errors.ts';

/** The error of every store, and of an upload whose announced length is already too large. */
export function fileTooLarge(sizeBytesMax: number): GatewayError {
  const message = `The file is too large. The maximum is ${sizeBytesMax} bytes.`;
  return new GatewayError('payload_too_large', 'file_too_large', message, { param: 'file' });
}

export function blobNotFound(cause: unknown): GatewayError {
  return new GatewayError('not_found', 'blob_not_found', 'The content of this file no longer exists.', { cause });
}

/** The store does not answer, or it is not the one that was opened. */
export function storageUnavailable(cause: unknown): GatewayError {
  const message = 'The file storage is unavailable. Try again later.';
  return new GatewayError('unavailable', 'storage_unavailable', message, { retryAfterMs: 1_000, cause });
}
