import type { IncomingMessage, ServerResponse } from 'node:http';
import type { MemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createFormScan } from './form-scan.ts';
import { clientDisconnected } from './json-body.ts';
import { getContext } from '../request-context.ts';
import { watchUploadRate, type UploadRate } from './watch-upload-rate.ts';

export type FormModelLimits = {
  /** How far the form is read to find its model. The bytes read stay in memory. */
  readBytesMax: number;
  /** A client that sends more slowly is disconnected. */
  rate: UploadRate;
  /** Shared by all requests of the process. Absent: no limit. */
  memory?: MemoryBudget | undefined;
};

/** The part of a form that was read. The rest is still in the request, unless `isEnded`. */
export type FormStart = {
  /** The value of its text part `model`; null if none was found. */
  model: string | null;
  sizeBytes: number;
  isEnded: boolean;
  /** The bytes that were read, with another model in place of the original one. */
  withModel: (model: string | null) => Buffer[];
};

/**
 * Reads a multipart/form-data body up to its text part `model`, and leaves the rest in the request. null for a body of
 * another type. With `stopsAtFile` the model is optional, so no part of a file is read to find it. A malformed form has
 * no model; the provider rejects it. Throws GatewayError invalid_request (`request_timeout`, `client_closed_request`),
 * and the errors of the memory budget.
 */
export async function readFormModel(
  request: IncomingMessage,
  response: ServerResponse,
  { stopsAtFile, ...limits }: FormModelLimits & { stopsAtFile: boolean },
): Promise<FormStart | null> {
  const boundary = boundaryOf(request.headers['content-type'] ?? '');
  if (boundary === null) return null;
  const context = getContext(request);
  const lease = limits.memory?.open(context.caller?.workspaceId ?? null);
  if (lease) context.memory = lease;
  const scan = createFormScan(boundary, stopsAtFile);
  const chunks: Buffer[] = [];
  let sizeBytes = 0;
  let isEnded = false;
  await new Promise<void>((resolve, reject) => {
    const settle = (error?: unknown): void => {
      unwatch();
      request.off('data', take).off('end', finish).off('close', leave);
      request.pause();
      if (error === undefined) resolve();
      else reject(error);
    };
    const take = (chunk: Buffer): void => {
      chunks.push(chunk);
      sizeBytes += chunk.length;
      try {
        lease?.charge(chunk.length);
      } catch (error) {
        return settle(error);
      }
      if (scan.push(chunk) || sizeBytes >= limits.readBytesMax) settle();
    };
    const finish = (): void => {
      isEnded = true;
      settle();
    };
    const leave = (): void => settle(clientDisconnected());
    const unwatch = watchUploadRate(request, limits.rate, settle);
    if (response.destroyed) return leave();
    request.on('data', take).on('end', finish).on('close', leave);
    if (request.headers.expect !== undefined) response.writeContinue();
  });
  const found = scan.found();
  return {
    model: found?.text ?? null,
    sizeBytes,
    isEnded,
    withModel: (model) =>
      found === null || model === null || model === found.text
        ? chunks
        : replaceBytes(chunks, found.start, found.end, Buffer.from(model)),
  };
}

function boundaryOf(contentType: string): string | null {
  const [, quoted, plain] =
    /^multipart\/form-data[\t ]*;.*\bboundary=(?:"([\w'()+,\-./:=? ]{1,70})"|([\w'()+,\-./:=?]{1,70}))[\t ]*(?:;|$)/i.exec(
      contentType,
    ) ?? [];
  return quoted ?? plain ?? null;
}

/** The chunks with the bytes from `start` to `end` replaced. */
function replaceBytes(chunks: readonly Buffer[], start: number, end: number, bytes: Buffer): Buffer[] {
  const before: Buffer[] = [];
  const after: Buffer[] = [];
  let at = 0;
  for (const chunk of chunks) {
    before.push(chunk.subarray(0, Math.max(0, start - at)));
    after.push(chunk.subarray(Math.max(0, end - at)));
    at += chunk.length;
  }
  return [...before, bytes, ...after].filter((chunk) => chunk.length > 0);
}
