import { GatewayError } from '#libs/kernel/errors.ts';
import type { Call } from '../provider.ts';
import { type Json, asText, toRecord } from '../turns/json-value.ts';
import type { Media } from '../turns/media.ts';
import { readTurns } from '../turns/read-turns.ts';
import { type ContentPart, unsupportedPart } from '../turns/turn-request.ts';

// ai.google.dev/gemini-api/docs: image, audio, video and document understanding.
const typesByExtension: Readonly<Record<string, string>> = {
  png: 'image/png',
  jpg: 'image/jpeg',
  jpeg: 'image/jpeg',
  webp: 'image/webp',
  heic: 'image/heic',
  heif: 'image/heif',
  gif: 'image/gif',
  pdf: 'application/pdf',
  txt: 'text/plain',
  html: 'text/html',
  css: 'text/css',
  csv: 'text/csv',
  xml: 'text/xml',
  md: 'text/md',
  wav: 'audio/wav',
  mp3: 'audio/mp3',
  aiff: 'audio/aiff',
  aac: 'audio/aac',
  ogg: 'audio/ogg',
  flac: 'audio/flac',
  m4a: 'audio/m4a',
  mp4: 'video/mp4',
  mpeg: 'video/mpeg',
  mpg: 'video/mpg',
  mov: 'video/mov',
  avi: 'video/avi',
  webm: 'video/webm',
  wmv: 'video/wmv',
  flv: 'video/x-flv',
  '3gp': 'video/3gpp',
};
const filesApi = 'https://generativelanguage.googleapis.com/v1beta/';
const isFetchable = /^(image|audio|video|text)\/|^application\/(pdf|json)$/;

/**
 * The URLs that cannot be passed on to Gemini, so that their content is sent instead: those whose type is unknown, because
 * Gemini requires a type with each URL, and those with plain http.
 */
export function urlsToFetch(call: Call): readonly string[] {
  const parts = readTurns(call).messages.flatMap((turn) => turn.parts);
  return parts.flatMap((part) => {
    if ((part.type !== 'image' && part.type !== 'file') || part.media.kind !== 'url') return [];
    const { url } = part.media;
    return mustFetch(url, givenType(part)) ? [url] : [];
  });
}

/** The type that a client of chat completions has written next to a URL. */
const givenType = ({ type, raw }: ContentPart): string | undefined =>
  asText(toRecord(raw[type === 'file' ? 'file' : 'image_url'])['mime_type']);

function mustFetch(url: string, type: string | undefined): boolean {
  if (/^http:/i.test(url)) return true;
  return /^https:/i.test(url) && !isGoogleFile(url) && (type ?? typeOf(url)) === undefined;
}

/** Files stored at Google, which knows their types. */
const isGoogleFile = (url: string): boolean => url.startsWith(`${filesApi}files/`) || isVideoPage(url);
const isVideoPage = (url: string): boolean => /^https:\/\/(www\.)?(youtube\.com\/|youtu\.be\/)/.test(url);

function typeOf(url: string): string | undefined {
  const path = URL.canParse(url) ? new URL(url).pathname : url;
  return typesByExtension[/\.([A-Za-z0-9]{2,4})$/.exec(path)?.[1]?.toLowerCase() ?? ''];
}

/** One part of a message in Gemini's format. Throws invalid_request, naming the param, for what Gemini does not support. */
export function toGeminiPart(part: ContentPart, call: Call): Json {
  switch (part.type) {
    case 'text':
    case 'refusal':
      return { text: part.text };
    case 'audio':
      return { inlineData: { mimeType: typesByExtension[part.format] ?? `audio/${part.format}`, data: part.base64 } };
    case 'image':
    case 'file':
      return mediaPart(part, part.media, givenType(part), call);
    case 'unknown':
      throw unsupportedPart(part, 'Gemini', 'parts must be text, image_url, input_audio or file');
  }
}

function mediaPart(part: ContentPart, media: Media, type: string | undefined, call: Call): Json {
  if (media.kind === 'bytes') return { inlineData: { mimeType: media.mediaType, data: media.base64 } };
  if (media.kind === 'id') {
    if (!/^files\/[a-z0-9-]{1,60}$/.test(media.id)) {
      throw unsupportedPart(
        part,
        'Gemini',
        'Gemini file IDs have the form files/abc-123. Send other files as data or by URL',
      );
    }
    return { fileData: { ...(type === undefined ? {} : { mimeType: type }), fileUri: filesApi + media.id } };
  }
  const { url } = media;
  if (mustFetch(url, type)) return fetchedPart(part, url, call);
  if (!/^(https|gs):/i.test(url)) throw unsupportedPart(part, 'Gemini', 'URLs must start with https:, gs: or data:');
  const mimeType = type ?? typeOf(url) ?? (isVideoPage(url) ? 'video/mp4' : undefined);
  if (mimeType === undefined && !isGoogleFile(url)) {
    throw unsupportedPart(
      part,
      'Gemini',
      'its type is unknown. Add mime_type next to the URL, or add a file extension to the URL',
    );
  }
  return { fileData: { ...(mimeType === undefined ? {} : { mimeType }), fileUri: url } };
}

function fetchedPart(part: ContentPart, url: string, call: Call): Json {
  const resource = call.resources.get(url);
  const mimeType = resource && (typeOf(url) ?? resource.contentType);
  if (resource === undefined || mimeType === undefined || !isFetchable.test(mimeType)) {
    const { host } = new URL(url);
    throw new GatewayError(
      'invalid_request',
      'resource_unavailable',
      `Invalid '${part.param}': according to its content type at ${host}, it is not an image, audio, video, text or PDF file.`,
      { param: part.param },
    );
  }
  return { inlineData: { mimeType, data: resource.bytes.toString('base64') } };
}
