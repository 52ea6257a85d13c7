/// <reference types="vite/types/importMeta.d.ts" />

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { readRetryAfter } from '#libs/calls/retry-waits.ts';
import { findProvider, providerIds } from '#libs/providers/registry.ts';
import {
  membersOf,
  parsePayload,
  payloadNames,
  payloadSets,
  type PayloadSet,
} from '#test/fixtures/provider-payloads.ts';
import { canary } from '#test/forwarding-rig.ts';
import { checkCuts } from './check-cuts.ts';
import { answering, startConformanceClient, streaming, type ConformanceClient } from './conformance-client.ts';
import type { ConformanceCase, Conversation, EarlyError, Json, Lines, Whole } from './conformance-case.ts';
import { checkChunks, checkCompletion, checkCounts, checkSays } from './invariants.ts';
import { nextTurn } from './next-turn.ts';
import {
  toBodyObject,
  comparable,
  isUsageOnly,
  readChunks,
  readCompletion,
  type Completion,
  type Read,
} from './read-answer.ts';
import { linesOf, withRecording } from './payloads.ts';

const modules = import.meta.glob<{ cases: readonly ConformanceCase[] }>('./cases/*.ts', { eager: true });
const cases = Object.values(modules).flatMap((module) => module.cases);

test('every provider that is not plain OpenAI-compatible has a case', () => {
  const special = providerIds.filter((id) => {
    const provider = findProvider(id);
    const chat = provider?.operations.chat;
    const folder = path.resolve(import.meta.dirname, '../../libs/providers', id);
    const translates = chat && ('openStream' in chat || 'decode' in chat || 'openFraming' in chat);
    return translates === true || provider?.authorize !== undefined || existsSync(folder);
  });
  const covered = new Set(cases.map(({ provider }) => provider));
  expect(special.filter((id) => !covered.has(id))).toEqual([]);
  expect([...covered].filter((id) => findProvider(id)?.id !== id)).toEqual([]);
  expect(covered).toContain('openai');
});

if (payloadSets.includes('recorded')) {
  // What a model puts into its arguments is its own affair.
  const shapeOf = (name: string, set: PayloadSet) =>
    membersOf(parsePayload(name, set)).filter((member) => !member.includes('.toolUse.input.'));
  test.each(payloadNames('own', /./))('the payload %s has the members of its recording', (name) => {
    expect(shapeOf(name, 'own')).toEqual(shapeOf(name, 'recorded'));
  });
}

/** What stands before any provider, such as a load balancer, answers with a page of its own. */
const errorPage: EarlyError = {
  name: 'a page that is not JSON',
  status: 502,
  body: `\n<html>Bad "gateway" ${canary}</html>`,
  reported: {
    status: 502,
    code: null,
    message:
      'The provider returned status 502 with a body that is not JSON. It starts with: "<html>Bad \\"gateway\\" [redacted]</html>"',
    type: 'server_error',
  },
};

const named = cases.map((each) => [each.variant ? `${each.provider} (${each.variant})` : each.provider, each] as const);

describe.each(named)('%s', (_name, conformanceCase) => {
  const { wire, deviations = [], passThrough = false } = conformanceCase;
  const unended = { wire: { contentType: wire.contentType, frame: wire.frame } };
  let client: ConformanceClient;
  beforeAll(async () => {
    client = await startConformanceClient(conformanceCase);
  });
  afterAll(() => client.stop());

  describe.each(conformanceCase.answers.flatMap(withRecording).map((answer) => [answer.name, answer] as const))(
    'answer: %s',
    (_title, answer) => {
      const { whole, stream, says, request = {} } = answer;

      /** The answer whole, checked against what holds of all and what it says. */
      const readWhole = async (source: Whole, strict: boolean): Promise<Read> => {
        client.play(answering(source));
        const { status, body, finishReason, usage } = await client.whole(request, { strict });
        const completion = JSON.parse(body.toString()) as Completion;
        expect(status).toBe(200);
        checkCompletion(completion, { strict, deviations });
        checkSays(readCompletion(completion), says, strict);
        checkCounts(completion.usage, says.usage);
        const { prompt, completion: output, cached = 0, reasoning = 0 } = says.usage;
        expect(finishReason).toBe(says.finishReason);
        expect(usage).toEqual({
          inputTokens: prompt,
          cachedTokens: cached,
          outputTokens: output,
          reasoningTokens: reasoning,
          ...says.billed,
        });
        return readCompletion(completion);
      };

      const readStream = async (
        source: Lines,
        options: { strict?: boolean; includeUsage?: boolean },
      ): Promise<Read> => {
        const { strict = true, includeUsage = true } = options;
        client.play(streaming(conformanceCase, source));
        const { chunks, payloads, error, usage } = await client.stream(request, { strict, includeUsage });
        expect(error).toBeNull();
        expect(usage).toMatchObject({ outputTokens: says.usage.completion, ...says.billed });
        checkChunks(chunks, { strict, includeUsage, deviations });
        const read = readChunks(chunks);
        checkSays(read, says, strict);
        if (includeUsage) checkCounts(read.usage, says.usage);
        if (passThrough) {
          const lines = linesOf(source).filter((line) => includeUsage || !isUsageOnly(line));
          expect(payloads.slice(0, lines.length)).toEqual(lines);
        }
        return read;
      };

      if (whole) {
        test('whole says what the provider said, in OpenAI’s shape', async () => {
          await readWhole(whole, true);
        });
      }

      if (stream) {
        test('streamed says the same, with usage in a last chunk if asked', async () => {
          await readStream(stream, { includeUsage: true });
          await readStream(stream, { includeUsage: false });
        });

        test('cut in two at any byte is the same stream; cut off, it is an error', async () => {
          await checkCuts({ conformanceCase, client, answer });
        }, 30_000);
      }

      if (whole && stream) {
        test('whole and streamed are one and the same', async () => {
          const first = comparable(await readWhole(whole, true));
          expect(comparable(await readStream(stream, {}))).toEqual(first);
        });
      }

      if (says.contentBlocks) {
        test('holds blocks of content when strict compliance is off', async () => {
          if (whole) await readWhole(whole, false);
          if (stream) await readStream(stream, { strict: false });
        });
      }
    },
  );

  describe.each(conformanceCase.conversations.map((each) => [each.name, each] as const))(
    'tools: %s',
    (_title, talk) => {
      test('two turns', async () => {
        client.play(answering(talk.first.whole), answering(talk.second.whole));
        await holdConversation(talk, async (request) => readCompletion(toBodyObject(await client.whole(request))));
      });

      test('two turns, streamed', async () => {
        client.play(streaming(conformanceCase, talk.first.stream), streaming(conformanceCase, talk.second.stream));
        await holdConversation(talk, async (request) => readChunks((await client.stream(request)).chunks));
      });

      const holdConversation = async (
        { request, finalText, secondRequest }: Conversation,
        read: (request: Json) => Promise<Read>,
      ): Promise<void> => {
        const first = await read(request);
        expect(first.finishReason).toBe('tool_calls');
        const second = await read(nextTurn(talk, first));
        expect(second).toMatchObject({ text: finalText, finishReason: 'stop', toolCalls: [] });
        expect(client.sent(1)).toMatchObject(secondRequest(first.toolCalls.map(({ id }) => id)));
      };
    },
  );

  test.each([...conformanceCase.earlyErrors, errorPage].map((each) => [each.name, each] as const))(
    'error before the answer: %s',
    async (_title, { status, headers, body, reported }) => {
      const { retryAfterMs = null, status: wantedStatus, ...error } = reported;
      client.play(answering({ body }, status, headers));
      for (const stream of [false, true]) {
        const answer = await client.whole({}, { stream });
        expect(answer.status).toBe(wantedStatus);
        expect(answer.body.toString()).not.toContain(canary);
        const shown = JSON.parse(answer.body.toString()) as { error: Json };
        expect(shown.error).toMatchObject({ type: expect.any(String), param: null, ...error });
        expect(readRetryAfter(answer.headers, client.now())).toBe(retryAfterMs);
      }
    },
  );

  describe.each(conformanceCase.streamErrors.map((each) => [each.name, each] as const))(
    'error in the stream: %s',
    (_title, { before, error, reported, firstStatus }) => {
      test('ends it, without a finish reason', async () => {
        client.play(streaming(unended, { lines: [...before, error] }));
        const read = await client.stream({});
        expect(read.error).toMatchObject({
          kind: 'provider_failed',
          ...reported,
          code: reported.code ?? 'upstream_error',
        });
        expect(readChunks(read.chunks).finishReason).toBeNull();
      });

      if (firstStatus !== undefined) {
        test('as its first event is answered with a status', async () => {
          client.play(streaming(unended, { lines: [error] }));
          const early = await client.whole({}, { stream: true });
          expect(early.status).toBe(firstStatus);
          expect(JSON.parse(early.body.toString())).toMatchObject({ error: reported });
        });
      }
    },
  );

  for (const { name, whole, stream, code } of conformanceCase.brokenAnswers ?? []) {
    if (whole) {
      test(`an answer that is none: ${name}`, async () => {
        client.play(answering(whole));
        expect(await client.refusal({})).toMatchObject({ code });
      });
    }
    if (stream) {
      test(`a stream that is none: ${name}`, async () => {
        client.play(streaming(unended, stream));
        const { error } = await client.stream({}).catch((thrown: unknown) => ({ error: thrown }));
        expect(error).toMatchObject({ code });
      });
    }
  }

  test.each((conformanceCase.encodings ?? []).map((each) => [each.name, each] as const))(
    'a request: %s',
    async (_title, { request, stream = false, path: wantedPath, headers = {}, body = {} }) => {
      client.play((reply) => reply.json(400, { error: { message: 'not answered here' } }));
      await client.whole(request, { stream });
      const [sent] = client.requests();
      expect(sent?.path).toBe(wantedPath ?? sent?.path);
      expect({ ...absent(headers), ...sent?.headers }).toMatchObject(headers);
      expect({ ...absent(body), ...client.sent() }).toMatchObject(body);
    },
  );

  test.each((conformanceCase.dropped ?? []).map((each) => [each.names.join(', '), each] as const))(
    'cannot take %s: says so, or refuses',
    async (_title, { request, names }) => {
      const source = conformanceCase.answers.find(({ whole }) => whole !== undefined)?.whole;
      if (!source) throw new Error('the case needs a whole answer of its own');
      client.play(answering(source));
      const { headers } = await client.whole(request);
      expect(headers['x-gateway-dropped-params']?.split(', ').toSorted()).toEqual(names.toSorted());
      client.play(answering(source));
      const refused = await client.refusal(request, { unsupportedParams: 'refuse' });
      expect(refused).toMatchObject({ kind: 'invalid_request', code: 'unsupported_parameter' });
      expect(names).toContain(refused.param);
      expect(client.requests()).toEqual([]);
    },
  );

  test.each((conformanceCase.refused ?? []).map((each) => [each.param, each] as const))(
    'is not asked for what would change the answer’s shape: %s',
    async (_title, { request, param }) => {
      client.play((reply) => reply.json(500, {}));
      expect(await client.refusal(request)).toMatchObject({
        kind: 'invalid_request',
        code: 'unsupported_parameter',
        param,
      });
      expect(client.requests()).toEqual([]);
    },
  );

  test.each((conformanceCase.embeddings ?? []).map((each) => [each.name, each] as const))(
    'embeddings: %s',
    async (_title, { request, sends, whole, vectors, promptTokens }) => {
      client.play(answering(whole));
      const answer = await client.whole(request, { operation: 'embeddings' });
      expect(client.sent()).toMatchObject(sends);
      expect(answer.usage).toMatchObject({ inputTokens: promptTokens });
      expect(JSON.parse(answer.body.toString())).toMatchObject({
        object: 'list',
        data: vectors.map((embedding, index) => ({ object: 'embedding', index, embedding })),
        model: expect.stringMatching(/./),
        usage: { prompt_tokens: promptTokens, total_tokens: promptTokens },
      });
    },
  );

  test.each(conformanceCase.models ? [conformanceCase.models] : [])(
    'lists its models in OpenAI’s shape',
    async (models) => {
      const { whole, path: wantedPath, ids } = models;
      client.play(answering(whole));
      const answer = await client.whole({}, { operation: 'models' });
      expect(client.requests()[0]).toMatchObject({ method: 'GET', path: wantedPath });
      const list = JSON.parse(answer.body.toString()) as { data: Json[] };
      expect(list).toMatchObject({ object: 'list' });
      expect(list.data).toMatchObject(ids.map((id) => ({ id, object: 'model', created: expect.any(Number) })));
    },
  );
});

/** Members that are wanted absent are `undefined` until something says otherwise. */
function absent(wanted: Readonly<Record<string, unknown>>): Record<string, unknown> {
  return Object.fromEntries(Object.keys(wanted).map((name) => [name, undefined]));
}
