import { sleep } from '#libs/kernel/sleep.ts';
import type { BatchWait } from '#libs/contracts/batches/batches.ts';
import type { OpenAiBatch } from '#libs/batches/batch/to-openai-batch.ts';
import type { OpenAiFile } from '#libs/files/to-openai-file.ts';

type ShownBatch = OpenAiBatch & { waits: BatchWait[] };

/**
 * A client like the SDKs: a call that fails because of the server is sent again, with the same Idempotency-Key, until
 * it succeeds. Other answers are returned or thrown.
 */
export type RigClient = {
  upload(filename: string, content: Buffer, idempotencyKey: string): Promise<OpenAiFile>;
  /** `ownKey`: the target is the simulator, by its address and with a key that comes with this call only. */
  createBatch(body: object, options: { idempotencyKey: string; ownKey: boolean }): Promise<OpenAiBatch>;
  retrieveBatch(id: string): Promise<ShownBatch>;
  /** The HTTP status of the cancel: 200, or 409 when it came too late. */
  cancelBatch(id: string): Promise<number>;
  deleteFile(id: string): Promise<void>;
  fileContent(id: string): Promise<Buffer>;
};

type Answer = { status: number; body: Buffer };

const patienceMs = 90_000;
const attemptMs = 20_000;

export function createRigClient(options: { baseUrl: string; key: string; simulatorUrl: string }): RigClient {
  const ownTarget = {
    'x-gateway-api-key': options.key,
    authorization: 'Bearer a-key-of-the-caller',
    'x-gateway-provider': 'openai',
    'x-gateway-custom-host': `${options.simulatorUrl}/v1`,
  };

  async function call(method: string, path: string, init: () => RequestInit = () => ({})): Promise<Answer> {
    const giveUpAt = performance.now() + patienceMs;
    for (;;) {
      let problem: string;
      try {
        const { headers, ...rest } = init();
        const response = await fetch(`${options.baseUrl}${path}`, {
          method,
          ...rest,
          headers: { authorization: `Bearer ${options.key}`, ...(headers as Record<string, string> | undefined) },
          signal: AbortSignal.timeout(attemptMs),
        });
        const body = Buffer.from(await response.arrayBuffer());
        if (response.status < 500 && !isInProgress(response.status, body)) return { status: response.status, body };
        problem = `${response.status} ${body.toString('utf8').slice(0, 300)}`;
        // Every error during an outage must say that a retry may help. 500 is a bug.
        if (response.status === 500) throw new UnexpectedAnswer(`${method} ${path} answered ${problem}`);
      } catch (error) {
        if (error instanceof UnexpectedAnswer) throw error;
        problem = String(error);
      }
      if (performance.now() > giveUpAt) throw new Error(`${method} ${path} got no answer: ${problem}`);
      await sleep(100);
    }
  }

  const json = (answer: Answer, what: string): unknown => {
    if (answer.status === 200) return JSON.parse(answer.body.toString('utf8'));
    throw new UnexpectedAnswer(`${what} answered ${answer.status}: ${answer.body.toString('utf8').slice(0, 500)}`);
  };

  return {
    async upload(filename, content, idempotencyKey) {
      const answer = await call('POST', '/files', () => {
        const form = new FormData();
        form.set('purpose', 'batch');
        form.set('file', new Blob([new Uint8Array(content)]), filename);
        return { body: form, headers: { 'idempotency-key': idempotencyKey } };
      });
      return json(answer, 'upload') as OpenAiFile;
    },
    async createBatch(body, { idempotencyKey, ownKey }) {
      const headers: Record<string, string> = {
        'content-type': 'application/json',
        'idempotency-key': idempotencyKey,
        ...(ownKey ? ownTarget : {}),
      };
      const answer = await call('POST', '/batches', () => ({ body: JSON.stringify(body), headers }));
      return json(answer, 'create') as OpenAiBatch;
    },
    retrieveBatch: async (id) => json(await call('GET', `/batches/${id}`), 'retrieve') as ShownBatch,
    async cancelBatch(id) {
      const answer = await call('POST', `/batches/${id}/cancel`);
      if (answer.status !== 409) json(answer, 'cancel');
      return answer.status;
    },
    async deleteFile(id) {
      const answer = await call('DELETE', `/files/${id}`);
      // A retry of a deletion whose answer was lost finds nothing.
      if (answer.status !== 404) json(answer, 'delete file');
    },
    async fileContent(id) {
      const answer = await call('GET', `/files/${id}/content`);
      if (answer.status === 200) return answer.body;
      throw new UnexpectedAnswer(`content of ${id} answered ${answer.status}`);
    },
  };
}

class UnexpectedAnswer extends Error {
  override readonly name = 'UnexpectedAnswer';
}

/** A repeated call whose first try is still running gets an answer that asks for a retry. */
function isInProgress(status: number, body: Buffer): boolean {
  return status === 409 && body.includes('request_in_progress');
}
