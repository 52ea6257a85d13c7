import { PassThrough } from 'node:stream';
import type { Request, Response } from 'express';
import { hasBody } from '#libs/http/drain-request.ts';
import { readFormModel, type FormModelLimits, type FormStart } from '#libs/http/form-model.ts';
import { jsonBodyOf, readJsonBody, type JsonBody, type JsonBodyLimits } from '#libs/http/json-body.ts';
import { watchUploadRate, type UploadRate } from '#libs/http/watch-upload-rate.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { spliceMembers } from '#libs/kernel/json-members.ts';
import type { RelayCall } from '#libs/providers/provider.ts';

export type RelayBodyLimits = {
  jsonBody: JsonBodyLimits;
  /** Of a form's part `model`. */
  formModel: FormModelLimits;
  /** Of a body that is not JSON: audio, images, forms. */
  uploadBytesMax: number;
  uploadRate: UploadRate;
};

type SentBody = Pick<RelayCall, 'body' | 'contentType' | 'contentLength'>;

/** The body of a call that is forwarded whole, as far as it had to be read. */
export type RelayBody = {
  /** Of a JSON body, or of a form. */
  model: string | null;
  /** Of a JSON body; null: none, or another kind. */
  json: Buffer | null;
  /** A JSON body with `stream: true`. */
  asksForStream: boolean;
  /** Whether there is more than was read. */
  isStreamed: boolean;
  /** The whole body, with this model in the place of its own; a body that is streamed can be asked for once. */
  send: (model: string | null) => SentBody;
};

/**
 * Reads a JSON body whole, and a form until its model is known; other bodies not at all. `needsModel`: nothing but the
 * model can say where the call goes, so a form is read for it even if a file comes first.
 * Throws as `readJsonBody` and `readFormModel` do, and payload_too_large.
 */
export async function readRelayBody(
  request: Request,
  response: Response,
  limits: RelayBodyLimits,
  needsModel: boolean,
): Promise<RelayBody> {
  if (request.method !== 'POST' || !hasBody(request)) {
    const send = (): SentBody => ({ body: null, contentType: null, contentLength: null });
    return { model: null, json: null, asksForStream: false, isStreamed: false, send };
  }
  if (/^application\/json\b/i.test(request.headers['content-type'] ?? '')) {
    await readJsonBody(request, response, limits.jsonBody);
    const body = jsonBodyOf(request);
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
  new GatewayError('payload_too_large', 'request_too_large', `The body is too large: at most ${bytesMax} bytes.`);

/**
 * What was read of the request's body, and the rest as it comes, as a stream of its own: a call that is cancelled must not
 * destroy the socket of its answer.
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
    if (!request.complete) body.destroy(new Error('the client left in the middle of its body'));
  });
  body.on('error', () => request.unpipe(body));
  request.pipe(body);
  return body;
}
