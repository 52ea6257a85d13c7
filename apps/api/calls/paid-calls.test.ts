import type { ServerResponse } from 'node:http';
import { expect, onTestFinished, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import type { Outcome } from '#libs/calls/call.ts';
import { createCalls, type Calls } from '#libs/calls/calls.ts';
import { withoutConfig } from '#libs/credentials/configs/plan.ts';
import { systemClock } from '#libs/kernel/clock.ts';
import type { Guardrails, GuardrailVerdict } from '#libs/calls/protect/guardrails/guardrails.ts';
import { serveForTest } from '#libs/http/http-test-kit.ts';
import { defaultJsonBodyLimits } from '#libs/http/bodies/json-body.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { builtInPrices } from '#libs/prices/built-in-prices.ts';
import { createPricing } from '#libs/prices/pricing.ts';
import { createCallCosts } from '#libs/request-log/record/call-costs.ts';
import type { RequestLogEntry } from '#libs/request-log/row/log-entry.ts';
import type { ResponseCache } from '#libs/calls/protect/response-cache/response-cache.ts';
import { compileConfig } from '#libs/calls/plan/compile-config.ts';
import { eventually } from '#test/eventually.ts';
import { completion, payloads, startForwardingRig } from '#test/forwarding-rig.ts';
import { streamOf } from '#test/upstream.ts';
import { liveRoutes } from './routes.ts';
import type { LiveDeps } from './forward-live-call.ts';
import { relayRoute } from './relay-call.ts';

// If a step fails after a provider was called, the call still has exactly one row. Each round lets the next one of the
// steps after the provider's answer throw, until a round has no such step.

/** Counts the steps of a call after its provider was called, and throws at one of them. */
function createFault() {
  let left = Number.POSITIVE_INFINITY;
  let isAsked = (): boolean => false;
  return {
    arm(step: number, asked: () => boolean) {
      left = step;
      isAsked = asked;
    },
    step() {
      if (!isAsked()) return;
      left -= 1;
      if (left === 0) throw new TypeError('a bug after the call');
    },
    wasReached: () => left <= 0,
  };
}

const passed: GuardrailVerdict = { outcome: 'passed', results: [] };
const plan = compileConfig(
  ConfigInput.parse({
    cache: { mode: 'simple' },
    input_guardrails: [{ contains: { words: ['x'] } }],
    output_guardrails: [{ contains: { words: ['x'] } }],
  }),
);

async function setUp({ hasConfig }: { hasConfig: boolean }) {
  const rig = await startForwardingRig();
  onTestFinished(() => rig.stop());
  const fault = createFault();
  const rows: RequestLogEntry[] = [];
  const requestLog = { isFull: () => false, record: (row: RequestLogEntry) => void rows.push(row) };
  const target = { ...rig.target, credentialId: 'vk', workspaceId: 'ws_1' };
  const guardrails = {
    textsOf: async () => ({ said: [], measured: [], unreadable: null }),
    evaluate: async () => {
      fault.step();
      return passed;
    },
  } as unknown as Guardrails;
  const responseCache: Pick<ResponseCache, 'through'> = {
    async through(_scope, _options, { make }) {
      const outcome = await make();
      fault.step();
      return outcome;
    },
  };
  const real = createCalls({ egress: rig.egress, clock: systemClock, random: () => 0, guardrails, responseCache });
  const calls: Pick<Calls, 'run'> = {
    async run(...call) {
      const outcome: Outcome = await real.run(...call);
      if (outcome.kind !== 'stream') return outcome;
      const events = (async function* () {
        for await (const batch of outcome.events) {
          fault.step();
          yield batch;
        }
      })();
      return { ...outcome, events };
    },
  };
  const deps = {
    calls,
    routing: {
      planOf: () => (hasConfig ? { ...withoutConfig, plan } : withoutConfig),
      resolveLeaf: async () => ({ target, model: 'gpt-test' }),
    },
    requestLog,
    costs: createCallCosts(createPricing({ table: () => builtInPrices })),
    telemetry: null,
  } as unknown as LiveDeps;
  const routes = [
    ...liveRoutes(deps),
    relayRoute({ ...deps, jsonBody: defaultJsonBodyLimits } as never, {
      area: 'moderations',
      method: 'POST',
      path: '/v1/moderations',
      operationId: 'createModeration',
      summary: '',
      isForm: false,
      answers: 'application/json',
    }),
  ].map((route) => ({
    ...route,
    handler: ((request, response, next) => {
      failing(response, () => fault.step());
      return route.handler(request, response, next);
    }) as typeof route.handler,
  }));
  const server = await serveForTest(routes, { deps: { logger: silent } });
  onTestFinished(() => server[Symbol.asyncDispose]());

  const call = async (step: number, path: string, body: object): Promise<boolean> => {
    rows.length = 0;
    rig.upstream.requests.length = 0;
    fault.arm(step, () => rig.upstream.requests.length > 0);
    const answer = await fetch(server.url + path, {
      method: 'POST',
      headers: {
        authorization: 'Bearer all',
        'content-type': 'application/json',
        ...(hasConfig ? { 'x-gateway-config': 'mine' } : {}),
      },
      body: JSON.stringify(body),
    })
      .then((response) => response.text())
      .catch(() => 'cut');
    expect(answer).not.toBe('');
    await eventually(
      () => rows.length,
      (count) => count > 0,
    );
    return fault.wasReached();
  };
  return { rig, rows, call };
}

/** The steps of sending fail as well, except those of the error's own answer. */
function failing(response: ServerResponse, step: () => void): void {
  let isSpent = false;
  const guarded = <Args extends unknown[], Result>(work: (...args: Args) => Result) => {
    return (...args: Args): Result => {
      if (!isSpent) {
        try {
          step();
        } catch (error) {
          isSpent = true;
          throw error;
        }
      }
      return work(...args);
    };
  };
  response.setHeader = guarded(response.setHeader.bind(response));
  response.writeHead = guarded(response.writeHead.bind(response)) as typeof response.writeHead;
  response.write = guarded(response.write.bind(response)) as typeof response.write;
}

const silent = createLogger({ name: 'test', level: 'silent' });

const messages = [{ role: 'user', content: 'hi' }];
const moderation = { id: 'm', model: 'gpt-test', results: [] };

test.each([
  ['a call', false, { model: 'm', messages }],
  ['a stream', false, { model: 'm', messages, stream: true }],
  ['a call with a config', true, { model: 'm', messages }],
  ['a stream with a config', true, { model: 'm', messages, stream: true }],
  ['a relayed call', false, { model: 'm', input: 'hi' }],
])('%s has its row, whichever step after the answer of its provider fails', async (_what, hasConfig, body) => {
  const { rig, rows, call } = await setUp({ hasConfig });
  const isRelayed = 'input' in body;
  if ('stream' in body) rig.upstream.script(streamOf(payloads));
  else rig.upstream.script((reply) => reply.json(200, isRelayed ? moderation : completion));
  const path = isRelayed ? '/v1/moderations' : '/v1/chat/completions';
  let step = 1;
  while (await call(step, path, body)) {
    expect(rows).toHaveLength(1);
    expect(rows[0]).toMatchObject({ provider: 'openai', attempts: 1 });
    step += 1;
  }
  expect(rows).toHaveLength(1);
  // The last round had no fault, and earlier ones had one.
  expect(rows[0]).toMatchObject({ status: 200, error_code: null, provider: 'openai', attempts: 1 });
  expect(step).toBeGreaterThan(1);
});

test('what an answer cost is in its row, although a guardrail failed after it', async () => {
  const { rig, rows, call } = await setUp({ hasConfig: true });
  rig.upstream.script((reply) => reply.json(200, completion));
  // The first step belongs to the cache, whose failure does not affect the call; the second belongs to the guardrails.
  await call(2, '/v1/chat/completions', { model: 'm', messages });
  expect(rows).toMatchObject([
    { status: 500, error_code: 'internal_error', attempts: 1, input_tokens: 12, output_tokens: 7 },
  ]);
});
