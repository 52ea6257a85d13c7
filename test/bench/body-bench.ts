import { startBareProxy, startGenerator } from './live-bench.ts';
import {
  chatRequest,
  measureTargets,
  throughSluice,
  type BenchRequest,
  type LiveSize,
  type Target,
  type TargetFigures,
} from './measure-targets.ts';
import type { Cleanup, Stack } from './stack.ts';

type Compared = Record<'bare' | 'sluice', TargetFigures>;

export type BodyFigures = {
  stream: Compared & { events: number };
  prompt: Compared & { requestBytes: number };
  vectors: Compared & { answerBytes: number };
};

/** A streamed chat completion whose events come one by one, 5 ms apart, as those of real models do. */
export function streamRequest(): BenchRequest {
  const request = chatRequest();
  const body = { ...(JSON.parse(request.body) as object), model: 'sim-small+200tps+40tok', stream: true };
  return {
    ...request,
    body: JSON.stringify(body),
    contentMark: '"delta":{"content":"',
    concurrency: 256,
    modestPerSecond: 50,
  };
}

/** 144 vectors of 3,072 numbers. */
function vectorsRequest(): BenchRequest {
  const input = Array.from({ length: 144 }, (_value, index) => `text ${index}`);
  const body = JSON.stringify({ model: 'sim-embedding', input, dimensions: 3_072, encoding_format: 'float' });
  return { path: '/v1/embeddings', body, concurrency: 4, modestPerSecond: 2 };
}

const promptBytes = 300_000;

/** Streams, large prompts and large answers, through Sluice and through the bare proxy. */
export async function measureBodies(
  stack: Stack,
  size: LiveSize,
  cleanup: Cleanup,
  onProgress: (text: string) => void,
): Promise<BodyFigures> {
  const bare = await startBareProxy(stack, 'request', cleanup);
  const sluice: Target<'sluice'> = { name: 'sluice', process: stack.api, order: throughSluice(stack) };
  const generator = await startGenerator(stack, cleanup);
  const measure = (request: BenchRequest): Promise<Compared> =>
    measureTargets([{ ...bare, name: 'bare' as const }, sluice], generator, size, onProgress, request);
  const direct = { ...bare.order, origin: stack.simulatorUrl };
  const [stream, vectors] = [streamRequest(), vectorsRequest()];
  const events = await countEvents({ ...direct, ...stream });
  const answerBytes = (await readAnswer({ ...direct, ...vectors })).length;
  return {
    stream: { ...(await measure(stream)), events },
    prompt: {
      ...(await measure({ ...chatRequest(promptBytes), concurrency: 8, modestPerSecond: 20 })),
      requestBytes: promptBytes,
    },
    vectors: { ...(await measure(vectors)), answerBytes },
  };
}

type Order = Target<string>['order'] & Pick<BenchRequest, 'path' | 'body'>;

/** The number of events that a streamed answer has. */
export async function countEvents(order: Order): Promise<number> {
  return (await readAnswer(order)).match(/^data: /gm)?.length ?? 0;
}

async function readAnswer({ origin, path, headers, body }: Order): Promise<string> {
  const answer = await fetch(`${origin}${path}`, { method: 'POST', headers, body });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${path}: ${text}`);
  return text;
}
