import { createWriteStream } from 'node:fs';
import { rm, stat } from 'node:fs/promises';
import path from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { Agent, request } from 'undici';
import { createSluiceClient } from '#test/bench/sluice-client.ts';
import { pause, type AttackCall, type Scene } from '../attack.ts';

type Options = Omit<Scene, 'tally' | 'call' | 'model' | 'upload' | 'createBatch'>;

export type RunningScene = Scene & {
  /** The results of the attacker's calls and batches. */
  outcome(): Promise<string>;
  /** Never rejects. Batches that have ended are not changed. */
  cancelBatches(): Promise<void>;
  close(): Promise<void>;
};

/** The attacker: its calls, on connections of its own, its batches, and the counts of their results. */
export function createScene(options: Options): RunningScene {
  const { url, key, providerUrl, folder, signal } = options;
  const agent = new Agent({ connections: null, headersTimeout: 0, bodyTimeout: 0, keepAliveTimeout: 1_000 });
  const client = createSluiceClient(url, key);
  const counts = new Map<string, number>();
  const models = new Map<string, Promise<string>>();
  const batches: string[] = [];
  let files = 0;

  const tally = (outcome: string): void => void counts.set(outcome, (counts.get(outcome) ?? 0) + 1);

  async function toCallEnd({
    method = 'POST',
    path: at = '/v1/chat/completions',
    ...call
  }: AttackCall): Promise<string> {
    const patience = AbortSignal.timeout(call.patienceMs ?? 600_000);
    const left = AbortSignal.any([signal, patience]);
    let status = 0;
    try {
      const answer = await request(`${url}${at}`, {
        method,
        headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json', ...call.headers },
        body: Buffer.isBuffer(call.body) || typeof call.body === 'string' ? call.body : toReadable(call.body),
        dispatcher: agent,
        signal: left,
      });
      status = answer.statusCode;
      if (call.readsNothing === true && status === 200) {
        const cut = new Promise<never>((_resolve, reject) => answer.body.once('error', reject));
        await Promise.race([cut, pause({ signal: left }, 600_000)]);
        answer.body.destroy();
        return 'open to the end, unread';
      }
      if (status >= 400) return `${status} ${codeOf(await answer.body.text())}`.trimEnd();
      for await (const _piece of answer.body) {
        // Read and dropped.
      }
      return String(status);
    } catch {
      if (patience.aborted) return 'left by the caller';
      if (signal.aborted) return status === 0 ? 'no answer to the end' : 'under way to the end';
      return status === 0 ? 'cut before an answer' : `${status}, then cut`;
    }
  }

  async function makeModel(behaviour: string): Promise<string> {
    const virtualKey = { provider: 'openai-compatible', key: 'sk-any', custom_host: `${providerUrl}/${behaviour}/v1` };
    const answer = await request(`${url}/v1/virtual-keys`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ name: behaviour, slug: behaviour, ...virtualKey }),
    });
    const text = await answer.body.text();
    if (answer.statusCode !== 200) throw new Error(`no virtual key ${behaviour}: ${answer.statusCode} ${text}`);
    return `@${behaviour}/any`;
  }

  return {
    ...options,
    tally,
    async call(call) {
      const outcome = await toCallEnd(call);
      tally(outcome);
      return outcome;
    },
    model(behaviour) {
      const made = models.get(behaviour) ?? makeModel(behaviour);
      models.set(behaviour, made);
      return made;
    },
    async upload(lines) {
      const file = path.join(folder, `attack-${(files += 1)}.jsonl`);
      try {
        await pipeline(Readable.from(lines), createWriteStream(file));
        return await client.upload(file, (await stat(file)).size);
      } catch (error) {
        tally(readRefusal(error));
        return null;
      } finally {
        await rm(file, { force: true });
      }
    },
    async createBatch(inputFileId, endpoint) {
      if (inputFileId === null) return;
      try {
        batches.push((await client.createBatch(inputFileId, endpoint)).id);
      } catch (error) {
        tally(readRefusal(error));
      }
    },
    async outcome() {
      const parts = [...counts].map(([outcome, count]) => `${outcome}${count === 1 ? '' : ` ×${count}`}`);
      if (batches.length > 0) parts.push(await describeBatches(client, batches));
      return parts.join(', ');
    },
    async cancelBatches() {
      for (const id of batches) await client.cancelBatch(id).catch(() => {});
    },
    close: () => agent.destroy(),
  };
}

const toReadable = (body: AsyncIterable<Buffer> | null | undefined): Readable | null =>
  body === null || body === undefined ? null : Readable.from(body);

/** The code in the body of an error; empty for anything else. */
function codeOf(text: string): string {
  return /"code":\s*"([^"]+)"/.exec(text)?.[1] ?? '';
}

/** The description of a batch that was refused. Throws for a mistake in the attack, which would then do no harm. */
function readRefusal(error: unknown): string {
  const problem = error instanceof Error ? error.message : String(error);
  if (/: 40[0-9] /.test(problem)) throw error;
  return `no batch: ${problem.slice(0, 120)}`;
}

async function describeBatches(client: ReturnType<typeof createSluiceClient>, ids: readonly string[]): Promise<string> {
  const sums = { total: 0, completed: 0, failed: 0 };
  const states = new Set<string>();
  try {
    for (const id of ids) {
      const { status, request_counts: counts } = await client.retrieveBatch(id);
      states.add(status);
      for (const name of ['total', 'completed', 'failed'] as const) sums[name] += counts[name];
    }
  } catch {
    return 'batches: the API does not tell';
  }
  const noun = ids.length === 1 ? 'batch' : 'batches';
  return `${ids.length} ${noun} ${[...states].join('/')}: ${sums.completed} done, ${sums.failed} failed of ${sums.total}`;
}
