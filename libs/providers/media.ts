import { GatewayError } from '#libs/kernel/errors.ts';

/** What an image or file part refers to: an address, bytes in base64, or a file kept at the provider. */
export type Media =
  | { kind: 'url'; url: string }
  | { kind: 'bytes'; mediaType: string; base64: string }
  | { kind: 'id'; id: string };

const base64Form = /^[A-Za-z0-9+/]*={0,2}$/;

/**
 * A `data:` URL taken apart (RFC 2397: base64, or percent-encoded text, which is turned into base64); any other URL as it
 * is. Throws invalid_request, naming the param, for a text that is neither.
 */
export function readMedia(url: string, param: string): Media {
  if (!/^data:/i.test(url)) {
    if (URL.canParse(url)) return { kind: 'url', url };
    throw unreadable(param, 'expected an absolute URL or a data: URL');
  }
  const comma = url.indexOf(',');
  const [mediaType = '', ...attributes] = url.slice(5, Math.max(comma, 5)).split(';');
  if (comma === -1 || mediaType === '') {
    throw unreadable(param, 'expected a data: URL such as data:image/png;base64,iVBORw0…');
  }
  const data = url.slice(comma + 1);
  if (attributes.some((attribute) => attribute.trim().toLowerCase() === 'base64')) {
    if (data === '' || !base64Form.test(data)) throw unreadable(param, 'the data after the comma is not base64');
    return { kind: 'bytes', mediaType: mediaType.toLowerCase(), base64: data };
  }
  try {
    const base64 = Buffer.from(decodeURIComponent(data)).toString('base64');
    return { kind: 'bytes', mediaType: mediaType.toLowerCase(), base64 };
  } catch {
    throw unreadable(param, 'the data after the comma is not percent-encoded text');
  }
}

/** The message never repeats the value: it may be megabytes. */
const unreadable = (param: string, what: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${what}.`, { param });
