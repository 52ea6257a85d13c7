import { randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import type { Target } from '#libs/calls/call.ts';
import type { Calls } from '#libs/calls/calls.ts';
import type { PlainAnswer, PlainRequest } from '#libs/calls/upstream/egress/plain-request.ts';
import { isQuotaUsedUp, readRetryAfter } from '#libs/calls/retry-waits.ts';
import { tuningTimeouts } from '#libs/calls/timeouts.ts';
import { GatewayError, type ErrorKind } from '#libs/kernel/errors.ts';
import type { FineTuningControl } from './fine-tuning-job.ts';
import { readProviderJob, type ProviderJob } from './read-provider-job.ts';

/** A file to upload to the provider. `open` yields exactly `sizeBytes` bytes. */
export type FileToUpload = { filename: string; sizeBytes: number; open: () => Promise<Readable> };

const pageSize = 100;
/** A list is read up to this many pages: 100,000 records. */
const pagesMax = 1_000;
const resultBytesMax = 16_777_216;
/** Clocks differ, so records up to a day older than `since` are searched as well. */
const slackSeconds = 86_400;

/** The metadata key that identifies our job at its provider. */
export const jobTag = 'sluice_job_id';

/** Whether the same call can succeed later: the provider was unreachable, overloaded or rate-limited, but did not refuse. */
export function isRetryable(error: GatewayError): boolean {
  return retryableKinds.has(error.kind);
}
const retryableKinds: ReadonlySet<ErrorKind> = new Set([
  'provider_failed',
  'provider_timeout',
  'rate_limited',
  'unavailable',
]);

type TuningRequest = Omit<PlainRequest, 'signal'>;

/**
 * The files and fine-tuning API of one target. Each method makes one call without retries, and throws GatewayError. The
 * kind of an error status distinguishes refusals (`invalid_request` and others) from errors worth a retry, see
 * `isRetryable`.
 */
export class TuningProvider {
  readonly #calls: Pick<Calls, 'request'>;
  readonly #target: Target;
  readonly #options: { signal: AbortSignal; now: () => number };

  constructor(calls: Pick<Calls, 'request'>, target: Target, options: { signal: AbortSignal; now: () => number }) {
    this.#calls = calls;
    this.#target = target;
    this.#options = options;
  }

  /** Resolves with the provider's id of the file. */
  async uploadFile(file: FileToUpload): Promise<string> {
    const source = await file.open();
    try {
      const { headers, body } = multipart(file, source);
      // With the default timeouts instead of `tuningTimeouts`, because files are large.
      const request = { method: 'POST' as const, path: '/files', headers, body, timeouts: {} };
      const { id } = ((await this.#json(request)) ?? {}) as { id?: unknown };
      if (typeof id !== 'string' || id === '') throw this.#unreadable(request, 'that is not a file');
      return id;
    } finally {
      source.destroy();
    }
  }

  /** The id of a fine-tune file with this name uploaded after `since`, or null. Also null if the provider lists no files. */
  async findFile(filename: string, since: Date): Promise<string | null> {
    try {
      return await this.#findNewer('/files?purpose=fine-tune&order=desc', since, (item) => {
        const { id, filename: found } = item as { id?: unknown; filename?: unknown };
        return found === filename && typeof id === 'string' ? id : null;
      });
    } catch (error) {
      if (error instanceof GatewayError && error.kind === 'not_found') return null;
      throw error;
    }
  }

  createJob(body: object, idempotencyKey: string): Promise<ProviderJob> {
    return this.#job({
      method: 'POST',
      path: '/fine_tuning/jobs',
      headers: ['content-type', 'application/json', 'idempotency-key', idempotencyKey],
      body: Buffer.from(JSON.stringify(body)),
    });
  }

  findJob(isOurs: (job: ProviderJob) => boolean, since: Date): Promise<ProviderJob | null> {
    return this.#findNewer('/fine_tuning/jobs', since, (item) => {
      const found = readProviderJob(item);
      return found && isOurs(found) ? found : null;
    });
  }

  retrieveJob(id: string): Promise<ProviderJob> {
    return this.#job({ method: 'GET', path: jobPath(id) });
  }

  async controlJob(id: string, control: FineTuningControl): Promise<void> {
    await this.#call({ method: 'POST', path: `${jobPath(id)}/${control}`, headers: ['content-length', '0'] });
  }

  /** Pages of raw records, newest first. */
  pagesOf(id: string, list: 'events' | 'checkpoints'): AsyncGenerator<unknown[]> {
    return this.#pages(`${jobPath(id)}/${list}`);
  }

  /** The content of a result file, at most 16 MiB. */
  async readFile(id: string): Promise<Buffer> {
    const path = `/files/${encodeURIComponent(id)}/content`;
    return (await this.#call({ method: 'GET', path, bytesMax: resultBytesMax })).body;
  }

  async #call(request: TuningRequest): Promise<PlainAnswer> {
    const { signal, now } = this.#options;
    const answer = await this.#calls.request(this.#target, { timeouts: tuningTimeouts, ...request, signal });
    if (answer.error) throw readRefusal(answer, now());
    return answer;
  }

  async #json(request: TuningRequest): Promise<unknown> {
    const headers = [...(request.headers ?? []), 'accept', 'application/json'];
    const answer = await this.#call({ ...request, headers });
    try {
      return answer.json();
    } catch (cause) {
      throw this.#unreadable(request, 'that is not valid JSON', cause);
    }
  }

  async #job(request: TuningRequest): Promise<ProviderJob> {
    const read = readProviderJob(await this.#json(request));
    if (!read) throw this.#unreadable(request, 'that is not a fine-tuning job');
    return read;
  }

  #unreadable({ method, path }: TuningRequest, what: string, cause?: unknown): GatewayError {
    const message = `${this.#target.label} answered ${method} ${path.split('?', 1)[0]} with a body ${what}.`;
    return new GatewayError('provider_failed', 'upstream_invalid_response', message, { cause });
  }

  async *#pages(path: string): AsyncGenerator<Record<string, unknown>[]> {
    let after = '';
    for (let page = 0; page < pagesMax; page += 1) {
      const request = {
        method: 'GET' as const,
        path: `${path}${path.includes('?') ? '&' : '?'}limit=${pageSize}${after}`,
      };
      const body = (await this.#json(request)) as { data?: unknown; has_more?: unknown } | null;
      if (!Array.isArray(body?.data)) throw this.#unreadable(request, 'that is not a list');
      const items = body.data.filter(
        (item): item is Record<string, unknown> => typeof item === 'object' && item !== null,
      );
      yield items;
      const last = items.at(-1)?.['id'];
      if (body.has_more !== true || typeof last !== 'string') return;
      after = `&after=${encodeURIComponent(last)}`;
    }
  }

  /** Reads a list, newest first, until an item is found or the items become too old. */
  async #findNewer<Item>(path: string, since: Date, pick: (item: unknown) => Item | null): Promise<Item | null> {
    const oldest = Math.floor(since.getTime() / 1_000) - slackSeconds;
    for await (const items of this.#pages(path)) {
      for (const item of items) {
        const found = pick(item);
        if (found !== null) return found;
      }
      const last = items.at(-1)?.['created_at'];
      if (typeof last === 'number' && last < oldest) return null;
    }
    return null;
  }
}

const jobPath = (id: string): string => `/fine_tuning/jobs/${encodeURIComponent(id)}`;

/** Purpose first, then the file. The length is known beforehand, so a source that ends early makes the request fail. */
function multipart(file: FileToUpload, source: Readable): { headers: string[]; body: Readable } {
  const boundary = `sluice-${randomBytes(16).toString('hex')}`;
  const head = Buffer.from(
    `--${boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n` +
      `--${boundary}\r\ncontent-disposition: form-data; name="file"; filename="${file.filename}"\r\n` +
      'content-type: application/jsonl\r\n\r\n',
  );
  const tail = Buffer.from(`\r\n--${boundary}--\r\n`);
  async function* whole(): AsyncGenerator<Buffer> {
    yield head;
    yield* source as AsyncIterable<Buffer>;
    yield tail;
  }
  const length = head.length + file.sizeBytes + tail.length;
  return {
    headers: ['content-type', `multipart/form-data; boundary=${boundary}`, 'content-length', String(length)],
    body: Readable.from(whole(), { objectMode: false }),
  };
}

function readRefusal({ status, headers, error }: PlainAnswer, now: number): GatewayError {
  const { message, code, type, param } = error?.error ?? { message: '', code: null, type: null, param: null };
  const name = code ?? type ?? 'provider_error';
  const retryAfterMs = readRetryAfter(headers as Record<string, string>, now);
  return new GatewayError(kindOf(status, isQuotaUsedUp(code) || isQuotaUsedUp(type)), name, message, {
    param,
    ...(retryAfterMs === null ? {} : { retryAfterMs }),
  });
}

function kindOf(status: number, isQuotaError: boolean): ErrorKind {
  if (isQuotaError) return 'quota_exceeded';
  if (status === 404) return 'not_found';
  if (status === 401 || status === 403) return 'forbidden';
  if (status === 409) return 'conflict';
  if (status === 429) return 'rate_limited';
  return status >= 500 || status === 408 ? 'provider_failed' : 'invalid_request';
}
