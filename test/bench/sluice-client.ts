import { createReadStream } from 'node:fs';
import { Readable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { request } from 'undici';

export type BatchView = {
  id: string;
  status: string;
  output_file_id: string | null;
  in_progress_at: number | null;
  created_at: number;
  request_counts: { total: number; completed: number; failed: number };
};

export type SluiceClient = {
  /** Streams the file. Resolves with its id. */
  upload(file: string, sizeBytes: number): Promise<string>;
  /** `endpoint`: chat completions by default. */
  createBatch(inputFileId: string, endpoint?: string): Promise<BatchView>;
  retrieveBatch(id: string): Promise<BatchView>;
  cancelBatch(id: string): Promise<BatchView>;
  /** Polls ten times a second until the batch is in a final state. `onLook` gets each answer. */
  waitForEnd(id: string, onLook: (batch: BatchView) => void): Promise<BatchView>;
  /** Reads the file and counts its lines. */
  countLines(fileId: string): Promise<number>;
  /**
   * The p99 of the API's event loop turns since the last call, in ms. An idle loop has about 10 (that of its timer).
   */
  takeLoopP99Ms(): Promise<number>;
  /** Calls GET /health/live; for a probe. */
  ping(): Promise<void>;
};

const finalStates = new Set(['completed', 'failed', 'cancelled', 'expired']);
const boundary = 'sluice-bench-boundary';

/** The few calls of the API that the bench needs. Each rejects with the answer when it is not 200. */
export function createSluiceClient(url: string, adminKey: string): SluiceClient {
  const authorization = `Bearer ${adminKey}`;
  const json = async <Answer>(method: 'GET' | 'POST', path: string, body?: object): Promise<Answer> => {
    const answer = await request(`${url}${path}`, {
      method,
      headers: { authorization, 'content-type': 'application/json', 'x-gateway-virtual-key': 'simulator' },
      body: body === undefined ? null : JSON.stringify(body),
    });
    const text = await answer.body.text();
    if (answer.statusCode !== 200) throw new Error(`${method} ${path}: ${answer.statusCode} ${text}`);
    return JSON.parse(text) as Answer;
  };
  const retrieveBatch = (id: string): Promise<BatchView> => json('GET', `/v1/batches/${id}`);
  return {
    async upload(file, sizeBytes) {
      const head =
        `--${boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--${boundary}\r\n` +
        `content-disposition: form-data; name="file"; filename="input.jsonl"\r\ncontent-type: application/jsonl\r\n\r\n`;
      const tail = `\r\n--${boundary}--\r\n`;
      async function* form(): AsyncGenerator<Buffer> {
        yield Buffer.from(head);
        yield* createReadStream(file, { highWaterMark: 262_144 }) as AsyncIterable<Buffer>;
        yield Buffer.from(tail);
      }
      const answer = await request(`${url}/v1/files`, {
        method: 'POST',
        headers: {
          authorization,
          'content-type': `multipart/form-data; boundary=${boundary}`,
          'content-length': String(head.length + sizeBytes + tail.length),
        },
        body: Readable.from(form()),
      });
      const text = await answer.body.text();
      if (answer.statusCode !== 200) throw new Error(`upload: ${answer.statusCode} ${text}`);
      return (JSON.parse(text) as { id: string }).id;
    },
    createBatch: (input_file_id, endpoint = '/v1/chat/completions') =>
      json('POST', '/v1/batches', { input_file_id, endpoint, completion_window: '24h' }),
    retrieveBatch,
    cancelBatch: (id) => json('POST', `/v1/batches/${id}/cancel`),
    async waitForEnd(id, onLook) {
      for (;;) {
        const batch = await retrieveBatch(id);
        onLook(batch);
        if (finalStates.has(batch.status)) return batch;
        await delay(100);
      }
    },
    async countLines(fileId) {
      const { body } = await request(`${url}/v1/files/${fileId}/content`, { headers: { authorization } });
      let lines = 0;
      for await (const chunk of body as AsyncIterable<Buffer>) {
        for (let at = chunk.indexOf(0x0a); at >= 0; at = chunk.indexOf(0x0a, at + 1)) lines += 1;
      }
      return lines;
    },
    async takeLoopP99Ms() {
      const { body } = await request(`${url}/metrics`);
      const seconds = /^nodejs_eventloop_lag_p99_seconds(?:\{[^}]*\})? (\S+)$/m.exec(await body.text())?.[1];
      return Number(seconds) * 1_000;
    },
    async ping() {
      const { body } = await request(`${url}/health/live`);
      await body.dump();
    },
  };
}
