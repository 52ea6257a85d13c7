import { once } from 'node:events';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import type { BenchProcess } from './start-process.ts';

/** What `Profiler.stop` of the inspector returns: for each sample, its node and the time since the previous sample, in µs. */
export type CpuProfile = {
  nodes: { id: number; callFrame: { functionName: string; url: string } }[];
  samples: number[];
  timeDeltas: number[];
};

const sampleMicroseconds = 200;
/** How long the inspector can take for an answer. */
const answerMsMax = 60_000;

/** Profiles the main thread of a process while `work` runs. It was started with `--inspect=127.0.0.1:0`. */
export async function profileWhile<Result>(
  process: Pick<BenchProcess, 'waitForLog'>,
  work: () => Promise<Result>,
): Promise<{ profile: CpuProfile; result: Result }> {
  const [, url = ''] = await process.waitForLog(/Debugger listening on (ws:\S+)/);
  const socket = new WebSocket(url);
  const next = (event: 'open' | 'message') => once(socket, event, { signal: AbortSignal.timeout(answerMsMax) });
  await next('open');
  let calls = 0;
  const call = async (method: string, params: object = {}): Promise<unknown> => {
    const id = (calls += 1);
    socket.send(JSON.stringify({ id, method, params }));
    for (;;) {
      const [{ data }] = (await next('message')) as [{ data: string }];
      const answer = JSON.parse(data) as { id?: number; result?: unknown; error?: { message: string } };
      if (answer.error !== undefined) throw new Error(`${method}: ${answer.error.message}`);
      if (answer.id === id) return answer.result;
    }
  };
  try {
    await call('Profiler.enable');
    await call('Profiler.setSamplingInterval', { interval: sampleMicroseconds });
    await call('Profiler.start');
    const result = await work();
    const { profile } = (await call('Profiler.stop')) as { profile: CpuProfile };
    return { profile, result };
  } finally {
    socket.close();
  }
}

/** `name`: of own code its file, relative to the root; of other packages their name. */
export type Part = {
  group: 'own code' | 'Node' | 'native code and system calls' | 'undici' | 'other packages' | 'garbage collection';
  name: string | null;
};

/** Adds up the time that each part itself took, in microseconds. Idle time is left out. */
export function sumByPart({ nodes, samples, timeDeltas }: CpuProfile, root: string): { part: Part; us: number }[] {
  const parts = new Map(nodes.map(({ id, callFrame }) => [id, findPart(callFrame, root)]));
  const sums = new Map<string, { part: Part; us: number }>();
  for (const [index, id] of samples.entries()) {
    const part = parts.get(id) ?? null;
    if (part === null) continue;
    const key = JSON.stringify(part);
    const sum = sums.get(key) ?? { part, us: 0 };
    // A sample stands for the time until the next one.
    sum.us += timeDeltas[index + 1] ?? 0;
    sums.set(key, sum);
  }
  return [...sums.values()].toSorted((left, right) => right.us - left.us);
}

function findPart({ functionName, url }: CpuProfile['nodes'][number]['callFrame'], root: string): Part | null {
  if (functionName === '(idle)' || functionName === '(root)') return null;
  if (functionName === '(garbage collector)') return { group: 'garbage collection', name: null };
  // The HTTP parser of undici is the only WebAssembly that runs for each call.
  if (url.startsWith('wasm:')) return { group: 'undici', name: null };
  if (url === '') return { group: 'native code and system calls', name: null };
  if (url.startsWith('node:')) return { group: url.includes('/undici') ? 'undici' : 'Node', name: null };
  const [, name] = /.*node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(url) ?? [];
  if (name === 'undici') return { group: 'undici', name: null };
  if (name !== undefined) return { group: 'other packages', name };
  return { group: 'own code', name: path.relative(root, url.startsWith('file:') ? fileURLToPath(url) : url) };
}
