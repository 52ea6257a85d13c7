import { GatewayError } from '#libs/kernel/errors.ts';

/** A URL's content, fetched by the core for a provider that does not accept URLs. */
export type Resource = { contentType: string; bytes: Buffer };

/** The target of an image or file part: a URL, bytes in base64, or a file stored at the provider. */
export type Media =
  | { kind: 'url'; url: string }
  | { kind: 'bytes'; mediaType: string; base64: string }
  | { kind: 'id'; id: string };

/** Only both ends are checked: checking megabytes would block the event loop, and the provider checks them anyway. */
const endLength = 1_000;
const base64Form = /^[A-Za-z0-9+/]+={0,2}$/;
const isBase64 = (text: string): boolean =>
  text.length <= 2 * endLength
    ? base64Form.test(text)
    : base64Form.test(text.slice(0, endLength)) && base64Form.test(text.slice(-endLength));

/** Common misnomers of media types. Providers know only the right names. */
const misnamed: Readonly<Record<string, string>> = { 'image/jpg': 'image/jpeg', 'image/pjpeg': 'image/jpeg' };
const normalise = (type: string): string => {
  const lower = type.trim().toLowerCase();
  return (Object.hasOwn(misnamed, lower) ? misnamed[lower] : undefined) ?? lower;
};

const signatures: readonly (readonly [RegExp, string])[] = [
  [/^\x89PNG\r\n/, 'image/png'],
  [/^\xff\xd8\xff/, 'image/jpeg'],
  [/^GIF8[79]a/, 'image/gif'],
  [/^RIFF.{4}WEBP/s, 'image/webp'],
  [/^%PDF-/, 'application/pdf'],
];

/** A fetched file as bytes. If the server sends a generic type (`binary/octet-stream`), the first bytes decide. */
export function fetchedMedia({ contentType, bytes }: Resource): Extract<Media, { kind: 'bytes' }> {
  const start = bytes.toString('latin1', 0, 16);
  const found = signatures.find(([signature]) => signature.test(start))?.[1];
  return { kind: 'bytes', mediaType: found ?? normalise(contentType), base64: bytes.toString('base64') };
}

/**
 * Parses a `data:` URL (RFC 2397: base64, or percent-encoded text, which is converted to base64). Any other URL is
 * returned unchanged. Throws invalid_request, naming the param, for a text that is neither.
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
    if (!isBase64(data)) throw unreadable(param, 'the data after the comma is not base64');
    return { kind: 'bytes', mediaType: normalise(mediaType), base64: data };
  }
  try {
    const base64 = Buffer.from(decodeURIComponent(data)).toString('base64');
    return { kind: 'bytes', mediaType: normalise(mediaType), base64 };
  } catch {
    throw unreadable(param, 'the data after the comma is not percent-encoded text');
  }
}

/** The message does not repeat the value, which can be megabytes long. */
const unreadable = (param: string, what: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${what}.`, { param });
