import { PassThrough } from 'node:stream';
import type { Request, Response } from 'express';
import { hasBody } from '#libs/http/bodies/drain-request.ts';
import { requireGoodBounds } from '#libs/contracts/calls/output-bounds.ts';
import { readFormModel, type FormModelLimits, type FormStart } from '#libs/http/bodies/form-model.ts';
import { getJsonBody, readJsonBody, type JsonBody, type JsonBodyLimits } from '#libs/http/bodies/json-body.ts';
import { watchUploadRate, type UploadRate } from '#libs/http/bodies/watch-upload-rate.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { spliceMembers } from '#libs/kernel/json/json-members.ts';
import type { RelayCall } from '#libs/providers/provider.ts';
import { findDigests } from './call-digests.ts';

export type RelayBodyLimits = {
  jsonBody: JsonBodyLimits;
  /** The limits for finding the part `model` of a form. */
  formModel: FormModelLimits;
  /** The maximum of a body that is not JSON: audio, images, forms. */
  uploadBytesMax: number;
  uploadRate: UploadRate;
};

type SentBody = Pick<RelayCall, 'body' | 'contentType' | 'contentLength'>;

/** The body of a relayed call, as far as it had to be read. */
export type RelayBody = {
  /** The model of a JSON body or of a form. */
  model: string | null;
  /** The bytes of a JSON body; null if the body is missing or of another kind. */
  json: Buffer | null;
  /** Whether it is a JSON body with `stream: true`. */
  asksForStream: boolean;
  /** Whether a part of the body has not been read yet. */
  isStreamed: boolean;
  /** Returns the whole body, with its model replaced by this one. A streamed body can be sent only once. */
  send: (model: string | null) => SentBody;
};

/** The body of a request that has none, or whose body is not sent to the provider. */
export const noBody: RelayBody = {
  model: null,
  json: null,
  asksForStream: false,
  isStreamed: false,
  send: () => ({ body: null, contentType: null, contentLength: null }),
};

/**
 * Reads a JSON body completely, a form up to its model, and other bodies not at all. With `needsModel` only the model
 * can determine where the call goes, so a form is read for it even if a file comes first. Throws like `readJsonBody`
 * and `readFormModel`, and payload_too_large.
 */
export async function readRelayBody(
  request: Request,
  response: Response,
  limits: RelayBodyLimits,
  needsModel: boolean,
): Promise<RelayBody> {
  if (request.method !== 'POST' || !hasBody(request)) return noBody;
  if (/^application\/json\b/i.test(request.headers['content-type'] ?? '')) {
    await readJsonBody(request, response, limits.jsonBody);
    const body = getJsonBody(request);
    if (body.head !== null) requireGoodBounds(body.head);
    const { model: named, stream } = body.head ?? {};
    const model = typeof named === 'string' ? named : null;
    return {
      model,
      json: body.bytes,
      asksForStream: stream === true,
      isStreamed: false,
      send: (sent) => jsonOf(body, sent === model ? null : sent),
    };
  }
  const length = request.headers['content-length'];
  if (Number(length ?? 0) > limits.uploadBytesMax) throw tooLarge(limits.uploadBytesMax);
  const start = await readFormModel(request, response, { ...limits.formModel, stopsAtFile: !needsModel });
  return {
    model: start?.model ?? null,
    json: null,
    asksForStream: false,
    isStreamed: true,
    send(model) {
      const read = start?.withModel(model) ?? [];
      findDigests(request)?.watchRequest(request, start?.withModel(null) ?? [], start?.isEnded === true);
      const grown = read.reduce((sum, chunk) => sum + chunk.length, 0) - (start?.sizeBytes ?? 0);
      return {
        body: streamOf(request, response, limits, start, read),
        contentType: request.headers['content-type'] ?? 'application/octet-stream',
        contentLength: length === undefined ? null : Number(length) + grown,
      };
    },
  };
}

const jsonOf = ({ bytes }: JsonBody, model: string | null): SentBody => ({
  body: model === null ? bytes : spliceMembers(bytes, { model: JSON.stringify(model) }),
  contentType: 'application/json',
  contentLength: null,
});

const tooLarge = (bytesMax: number): GatewayError =>
  new GatewayError(
    'payload_too_large',
    'request_too_large',
    `The body is too large. The maximum is ${bytesMax} bytes.`,
  );

/**
 * The bytes that were read, followed by the rest, as a separate stream: cancelling the call must not destroy the socket
 * that its answer is sent to.
 */
function streamOf(
  request: Request,
  response: Response,
  { uploadBytesMax: bytesMax, uploadRate }: RelayBodyLimits,
  start: FormStart | null,
  read: readonly Buffer[],
): PassThrough {
  const body = new PassThrough();
  for (const chunk of read) body.write(chunk);
  if (start?.isEnded) {
    body.end();
    return body;
  }
  if (start === null && request.headers.expect !== undefined) response.writeContinue();
  let bytes = start?.sizeBytes ?? 0;
  request.on('data', (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes > bytesMax) body.destroy(tooLarge(bytesMax));
  });
  watchUploadRate(request, uploadRate, (error) => body.destroy(error));
  request.once('close', () => {
    if (!request.complete) body.destroy(new Error('the client disconnected while sending the body'));
  });
  body.on('error', () => request.unpipe(body));
  request.pipe(body);
  return body;
}
