import { createWriteStream, openAsBlob } from 'node:fs';
import path from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createParser } from 'eventsource-parser';
import { z } from 'zod';
import { BatchObject } from '#libs/contracts/batches/batches.ts';
import { FileObject } from '#libs/contracts/batches/files.ts';

const Problem = z.object({ error: z.object({ message: z.string() }) });
const Delta = z.object({ choices: z.array(z.object({ delta: z.object({ content: z.string().nullish() }) })) });

export type GatewayClient = {
  uploadFile(file: string): Promise<FileObject>;
  createBatch(inputFileId: string, metadata: Record<string, string>): Promise<BatchObject>;
  retrieveBatch(id: string): Promise<BatchObject>;
  /** Streams a file's content into a local file. */
  download(fileId: string, target: string): Promise<void>;
  /** Streams a chat completion: each piece of text as it arrives. true when the stream ended with `[DONE]`. */
  streamChat(body: Record<string, unknown>, onText: (text: string) => void): Promise<boolean>;
};

/** The public API over HTTP, as any client would use it. Throws with the message of an error response. */
export function createGatewayClient(options: { url: string; key: string; signal: AbortSignal }): GatewayClient {
  const { url, key, signal } = options;

  const call = async (route: string, init: RequestInit = {}): Promise<Response> => {
    const headers = new Headers(init.headers);
    headers.set('authorization', `Bearer ${key}`);
    const response = await fetch(`${url}/v1${route}`, { ...init, headers, signal });
    if (response.ok) return response;
    const problem = Problem.safeParse(await response.json().catch(() => undefined));
    const message = problem.data?.error.message ?? 'no message';
    throw new Error(`${init.method ?? 'GET'} ${route} failed with ${response.status}: ${message}`);
  };
  const post = (route: string, body: unknown): Promise<Response> =>
    call(route, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });

  return {
    async uploadFile(file) {
      const form = new FormData();
      form.set('purpose', 'batch');
      // The file is read while it is sent, so that a large file is not held in memory.
      form.set('file', await openAsBlob(file), path.basename(file));
      return FileObject.parse(await (await call('/files', { method: 'POST', body: form })).json());
    },
    async createBatch(inputFileId, metadata) {
      const body = { input_file_id: inputFileId, endpoint: '/v1/chat/completions', completion_window: '24h', metadata };
      return BatchObject.parse(await (await post('/batches', body)).json());
    },
    async retrieveBatch(id) {
      return BatchObject.parse(await (await call(`/batches/${id}`)).json());
    },
    async download(fileId, target) {
      const { body } = await call(`/files/${fileId}/content`);
      await pipeline(body === null ? Readable.from([]) : Readable.fromWeb(body), createWriteStream(target));
    },
    async streamChat(body, onText) {
      const response = await post('/chat/completions', { ...body, stream: true });
      let isDone = false;
      const parser = createParser({
        maxBufferSize: 1_048_576,
        onEvent: ({ data }) => {
          if (data === '[DONE]') isDone = true;
          else for (const { delta } of Delta.parse(JSON.parse(data)).choices) if (delta.content) onText(delta.content);
        },
      });
      const decoder = new TextDecoder();
      for await (const chunk of response.body ?? []) parser.feed(decoder.decode(chunk as Uint8Array, { stream: true }));
      return isDone;
    },
  };
}
