import type { Kysely } from 'kysely';
import type { ReplaySelection } from '#libs/contracts/batches/traffic-replays.ts';
import type { LogListQuery } from '#libs/contracts/logs/logs.ts';
import type { Database } from '#libs/database/schema.ts';
import type { ReadBodies } from '#libs/request-log/bodies/recorded-bodies.ts';
import { classifyCallOutcome } from '#libs/request-log/row/call-outcome.ts';
import { toLogId } from '#libs/request-log/row/log-id.ts';
import { selectLogs, type LogListRow } from '#libs/request-log/read/read-log.ts';
import { readJsonLines } from './json-lines.ts';

// The lines of the batch that makes the calls of a replay, from recorded calls or from the lines of another batch.

type Changes = { model: string | null; prompt: string | null };

/** When one of the limits is reached, the rest is left out. */
type Limits = { calls: number; bytes: number; ms: number };

type Reason = keyof ReplaySelection['left_out'];

/** The requests of a replay, and how many calls were selected and left out until now. */
export class ReplayRequests {
  readonly selection: ReplaySelection = { calls: 0, left_out: {}, has_more: false };
  readonly #endpoint: string;
  readonly #changes: Changes;
  readonly #limits: Limits;
  readonly #startedMs = performance.now();
  #bytes = 0;

  constructor(endpoint: string, changes: Changes, limits: Limits) {
    this.#endpoint = endpoint;
    this.#changes = changes;
    this.#limits = limits;
  }

  /**
   * Yields the requests of recorded calls. `pages`: rows of the log. Only calls that were answered are replayed, because
   * one invalid request would make the whole batch fail.
   */
  async *ofCalls(pages: AsyncIterable<readonly LogListRow[]>, readBodies: ReadBodies): AsyncGenerator<Buffer> {
    for await (const page of pages) {
      for (let from = 0; from < page.length; from += readsAtOnce) {
        const rows = page.slice(from, from + readsAtOnce).map((row) => ({ row, reason: this.#refuse(row) }));
        const bodies = await Promise.all(
          rows.map(async ({ row, reason }) =>
            reason === null && row.bodies_blob !== null ? await readBodies(row.workspace_id, row.bodies_blob) : null,
          ),
        );
        const lines: Buffer[] = [];
        for (const [index, { row, reason }] of rows.entries()) {
          if (this.selection.has_more) break;
          const line = this.#add(toLogId(row.id), reason ?? bodies[index]?.request ?? 'no_recorded_body');
          if (line !== null) lines.push(line);
        }
        if (lines.length > 0) yield Buffer.concat(lines);
        if (this.selection.has_more) return;
        if (performance.now() - this.#startedMs <= this.#limits.ms) continue;
        this.selection.has_more = true;
        return;
      }
    }
  }

  /** Yields the lines of the input file of a batch. */
  async *ofLines(input: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
    for await (const { value } of readJsonLines(input, this.#limits.bytes)) {
      if (this.selection.has_more) return;
      const { custom_id: customId, body } = (value ?? {}) as { custom_id?: string; body?: unknown };
      const line = this.#add(customId ?? '', body ?? null);
      if (line !== null) yield line;
    }
  }

  #refuse(row: LogListRow): Reason | null {
    if (row.path !== this.#endpoint) return 'other_endpoint';
    if (classifyCallOutcome(row) !== 'succeeded') return 'failed';
    return row.bodies_blob === null ? 'no_recorded_body' : null;
  }

  /** `body`: a request as JSON text or as its value, or why there is none. */
  #add(customId: string, body: unknown): Buffer | null {
    const request = isReason(body) ? body : changeRequest(body, this.#changes);
    if (typeof request === 'string') {
      this.selection.left_out[request] = (this.selection.left_out[request] ?? 0) + 1;
      return null;
    }
    const line = { custom_id: customId, method: 'POST', url: this.#endpoint, body: request };
    const bytes = Buffer.from(`${JSON.stringify(line)}\n`);
    if (this.selection.calls >= this.#limits.calls || this.#bytes + bytes.length > this.#limits.bytes) {
      this.selection.has_more = true;
      return null;
    }
    this.selection.calls += 1;
    this.#bytes += bytes.length;
    return bytes;
  }
}

const readsAtOnce = 16;
const pageRows = 1_000;

/** Yields pages of the live calls of a workspace that match, newest first. Throws like `selectLogs`. */
export async function* readCallPages(
  db: Kysely<Database>,
  workspaceId: string,
  filters: Partial<LogListQuery>,
  signal: AbortSignal,
): AsyncGenerator<readonly LogListRow[]> {
  for (let after: string | undefined; ;) {
    signal.throwIfAborted();
    const found = await selectLogs(db, workspaceId, { ...filters, kind: 'live', limit: pageRows, after });
    const page = found.slice(0, pageRows);
    if (page.length > 0) yield page;
    const last = page.at(-1);
    if (found.length <= pageRows || last === undefined) return;
    after = toLogId(last.id);
  }
}

const reasons: ReadonlySet<unknown> = new Set<Reason>(['no_recorded_body', 'other_endpoint', 'failed']);
const isReason = (value: unknown): value is Reason => reasons.has(value);

/**
 * The request with the changes of a replay, and without the members that a batch does not support; or why it cannot be
 * replayed.
 */
function changeRequest(body: unknown, { model, prompt }: Changes): Record<string, unknown> | Reason {
  const given = typeof body === 'string' ? parseObject(body) : body;
  if (typeof given !== 'object' || given === null || Array.isArray(given)) return 'unreadable';
  const { stream: _stream, stream_options: _options, ...request } = given as Record<string, unknown>;
  if (prompt !== null) {
    if (request['prompt_id'] === undefined) return 'no_prompt';
    request['prompt_id'] = prompt;
  }
  if (model !== null) request['model'] = model;
  return request['model'] === undefined && request['prompt_id'] === undefined ? 'no_model' : request;
}

function parseObject(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return null;
  }
}
