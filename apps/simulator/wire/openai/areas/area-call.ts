import { createHash } from 'node:crypto';
import type { Behaviour } from '../../../model/generate.ts';
import { hashText } from '../../../model/hash.ts';
import { optionalText } from '../checks.ts';
import type { Call, Received } from '../../wire-format.ts';

/** A call whose answer is one JSON value that is derived from the request. */
export function jsonCall(received: Received, model: string, answer: (behaviour: Behaviour) => object): Call {
  return {
    model,
    hash: hashText(`${received.path}\n${received.text === '' ? sha256Of(received.bytes) : received.text}`),
    user: optionalText(received.json['user']),
    stream: false,
    frames: () => [],
    body: (behaviour) => JSON.stringify(answer(behaviour)),
  };
}

export function sha256Of(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** The bytes of a file in a multipart body; undefined if the field is absent or text. */
export async function fileOf(
  received: Received,
  field: string,
): Promise<{ name: string; bytes: Uint8Array } | undefined> {
  const file = received.form?.get(field) ?? received.form?.get(`${field}[]`);
  if (file === undefined || file === null || typeof file === 'string') return undefined;
  return { name: file.name, bytes: new Uint8Array(await file.arrayBuffer()) };
}

/** A text field of a multipart body. */
export function fieldOf(received: Received, field: string): string | undefined {
  return optionalText(received.form?.get(field) ?? undefined);
}
