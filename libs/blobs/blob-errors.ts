import { GatewayError } from '#libs/kernel/errors.ts';

/** The error of every store, and of an upload whose announced length is already too large. */
export function fileTooLarge(sizeBytesMax: number): GatewayError {
  const message = `The file is too large. The maximum is ${sizeBytesMax} bytes.`;
  return new GatewayError('payload_too_large', 'file_too_large', message, { param: 'file' });
}

export function blobNotFound(cause: unknown): GatewayError {
  return new GatewayError('not_found', 'blob_not_found', 'The content of this file no longer exists.', { cause });
}
