import { hashText, hexOf } from '../../model/hash.ts';

/** The signature of a call. It is derived from the call, so that a signature at another call is detected. */
export function callSignature(name: string, args: unknown): string {
  return Buffer.from(`simulator:${hexOf(hashText(`${name}\n${JSON.stringify(args)}`), 60)}`).toString('base64');
}
