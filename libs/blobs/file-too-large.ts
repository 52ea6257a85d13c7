import { GatewayError } from '#libs/kernel/errors.ts';

/** The refusal of every store, and of an upload whose length gives it away before it starts. */
export function fileTooLarge(sizeBytesMax: number): GatewayError {
  const message = `The file is too large: at most ${sizeBytesMax} bytes are accepted.`;
  return new GatewayError('payload_too_large', 'file_too_large', message, { param: 'file' });
}
