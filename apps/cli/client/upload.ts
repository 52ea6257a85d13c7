import { randomUUID } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
import path from 'node:path';
import { CliError } from './cli-error.ts';
import type { Client } from './http-client.ts';

export type FileObject = { id: string; bytes: number; created_at: number; filename: string; purpose: string };

/**
 * Uploads a file piece by piece, whatever its size. With the same `idempotencyKey` a repeat makes no second file. Throws
 * ApiError, UnreachableError, CliError.
 */
export async function upload(
  client: Client,
  file: string,
  options: {
    purpose: string;
    filename?: string;
    idempotencyKey?: string;
    onProgress?: (bytes: number, of: number) => void;
    signal?: AbortSignal;
  },
): Promise<FileObject> {
  const { size } = await stat(file).catch((error: NodeJS.ErrnoException) => {
    throw new CliError(`${file} is not readable (${error.code}).`);
  });
  const boundary = `sluice-${randomUUID()}`;
  const filename = (options.filename ?? path.basename(file)).replaceAll(/["\\\r\n]/g, '_');
  const { purpose, onProgress, idempotencyKey, signal } = options;
  async function* body(): AsyncGenerator<Uint8Array> {
    const part = (name: string): string => `--${boundary}\r\ncontent-disposition: form-data; name="${name}"`;
    yield Buffer.from(`${part('purpose')}\r\n\r\n${purpose}\r\n`);
    yield Buffer.from(`${part('file')}; filename="${filename}"\r\ncontent-type: application/octet-stream\r\n\r\n`);
    let sent = 0;
    for await (const piece of createReadStream(file, { highWaterMark: 262_144 }) as AsyncIterable<Buffer>) {
      yield piece;
      sent += piece.length;
      onProgress?.(sent, size);
    }
    if (sent !== size) throw new CliError(`${file} was changed while it was uploaded. Nothing was stored.`);
    yield Buffer.from(`\r\n--${boundary}--\r\n`);
  }
  return await client.json<FileObject>('POST', '/v1/files', {
    body,
    headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
    ...(idempotencyKey === undefined ? {} : { idempotencyKey }),
    signal,
  });
}
