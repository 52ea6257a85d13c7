import { open } from 'node:fs/promises';
import path from 'node:path';
import { hasCode } from '#libs/blobs/disk-blob-writer.ts';
import { postBody } from '#libs/calls/upstream/post-body.ts';
import { sendOverTls } from '#libs/calls/upstream/send-over-tls.ts';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { readRetryAfter } from '#libs/calls/retry-waits.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { SiemDestination } from '#libs/resources/siem/siem-cursor.ts';
import { makeFolder } from '#libs/kernel/make-folder.ts';
import { joinItems } from './event-formats.ts';
import { toServerUrl, type SiemDestinationData } from '#libs/resources/siem/siem-destination-data.ts';

/** A page that was not accepted. Its message contains no secret and no text of the receiver. */
export class NotAcceptedError extends Error {
  override readonly name = 'NotAcceptedError';
  readonly retryAfterMs: number | null;

  constructor(message: string, retryAfterMs: number | null = null) {
    super(message);
    this.retryAfterMs = retryAfterMs;
  }
}

type Deps = {
  egress: Egress;
  /** The operator's folder for events. */
  folder: string | undefined;
  signal: AbortSignal;
};

/**
 * Sends a page. Resolves when the receiver has accepted it, with the number of items that it reported as dropped. Throws
 * NotAcceptedError.
 */
export async function sendItems(deps: Deps, destination: SiemDestination, items: readonly string[]): Promise<number> {
  const { id, data } = destination;
  const { text, contentType } = joinItems(data, items);
  if (data.type === 'folder') {
    await appendToFolder(deps.folder, id, text);
    return 0;
  }
  const egress = data.ca ? deps.egress.trusting(data.ca) : deps.egress;
  try {
    const answer = await sendToServer({ ...deps, egress }, destination, { text, contentType });
    return Math.min(items.length, answer === undefined ? 0 : readDropped(answer));
  } catch (error) {
    // Without its cause, which would look like a lost connection to the database.
    throw error instanceof GatewayError ? new NotAcceptedError(error.message) : error;
  } finally {
    if (egress !== deps.egress) await egress.stop();
  }
}

async function sendToServer(
  { egress, signal }: Deps,
  { workspaceId, data, token }: SiemDestination,
  { text, contentType }: { text: string; contentType: string },
): Promise<Buffer | undefined> {
  const url = toServerUrl(data);
  const receiver = { egress, label: url.host, signal };
  if (data.type === 'syslog') {
    await sendOverTls(receiver, { url, bytes: Buffer.from(text), workspaceId });
    return undefined;
  }
  const headers = {
    'content-type': contentType,
    ...(token === undefined ? {} : { authorization: authorization(data, token) }),
  };
  const secrets = token === undefined ? [] : [token];
  const answerBytesMax = data.format === 'opentelemetry' ? collectorAnswerBytesMax : undefined;
  const answer = await postBody({ ...receiver, secrets }, { url, headers, body: text, workspaceId, answerBytesMax });
  if (answer.status >= 200 && answer.status < 300) return answer.body;
  const retryAfterMs = readRetryAfter(answer.headers as Record<string, string>, Date.now());
  throw new NotAcceptedError(`${url.host} answered with status ${answer.status}.`, retryAfterMs);
}

const collectorAnswerBytesMax = 65_536;

/**
 * Returns how many records of a page a collector reported as dropped (`partialSuccess`). OTLP 1.5 forbids sending such a
 * page again, because the collector has kept the other records.
 */
function readDropped(answer: Buffer): number {
  try {
    const { partialSuccess } = JSON.parse(answer.toString()) as { partialSuccess?: { rejectedLogRecords?: unknown } };
    // A 64-bit integer is a text.
    const dropped = Number(partialSuccess?.rejectedLogRecords ?? 0);
    return Number.isSafeInteger(dropped) && dropped > 0 ? dropped : 0;
  } catch {
    return 0; // The body is empty or another form of OTLP.
  }
}

/** The value of the header: of Splunk, a bearer token (RFC 6750), or one with its own scheme. */
function authorization({ type }: SiemDestinationData, token: Secret): string {
  const value = token.reveal();
  if (value.includes(' ')) return value;
  return `${type === 'splunk_hec' ? 'Splunk' : 'Bearer'} ${value}`;
}

/** Appends to a file of today, and makes it durable. After a crash in the middle of a line, the next one begins a new line. */
async function appendToFolder(root: string | undefined, id: string, text: string): Promise<void> {
  if (root === undefined) throw new NotAcceptedError('This worker has no folder for events (SLUICE_SIEM_FOLDER).');
  const folder = path.join(root, id);
  try {
    await makeFolder(folder, 0o750);
    const file = await open(path.join(folder, `${new Date().toISOString().slice(0, 10)}.jsonl`), 'a+', 0o640);
    try {
      const { size } = await file.stat();
      const { buffer } = await file.read(Buffer.alloc(1), 0, 1, Math.max(0, size - 1));
      await file.appendFile(size > 0 && buffer.toString() !== '\n' ? `\n${text}` : text);
      await file.sync();
    } finally {
      await file.close();
    }
  } catch (error) {
    if (!hasCode(error)) throw error;
    throw new NotAcceptedError(`The folder for events cannot be written (${error.code}).`);
  }
}
