import { isUtf8 } from 'node:buffer';
import { hashText } from '../../../model/hash.ts';
import { isObject, optionalText } from '../checks.ts';
import { shownHeaders, type Call, type Received } from '../../wire-format.ts';
import { sha256Of } from './area-call.ts';

/** Returns what was sent: method, path, query, headers (without credentials) and the body's size and SHA-256. */
export function echoCall(received: Received): Call {
  const { method, path, query, headers, bytes } = received;
  const sha256 = sha256Of(bytes);
  const json = parse(bytes);
  return {
    // As everywhere, the body's model may name a fault.
    model: isObject(json) ? (optionalText(json['model']) ?? '') : '',
    hash: hashText(`${method} ${path}?${query}\n${sha256}`),
    user: undefined,
    stream: false,
    frames: () => [],
    body: () => {
      const id = path.split('/')[3] ?? 'none';
      const body = { bytes: bytes.length, sha256, json: json ?? null };
      return JSON.stringify({
        id,
        object: 'simulator.echo',
        method,
        path,
        query,
        headers: shownHeaders(headers),
        body,
      });
    },
  };
}

function parse(bytes: Uint8Array): unknown {
  if (bytes.length === 0 || !isUtf8(bytes)) return undefined;
  try {
    return JSON.parse(Buffer.from(bytes).toString()) as unknown;
  } catch {
    return undefined;
  }
}
