import { afterEach, describe, expect, test } from 'vitest';
import { chatRequest, readStream, startForwardingRig, type ForwardingRig } from '#test/forwarding-rig.ts';
import type { UpstreamScript } from '#test/upstream.ts';
import type { Outcome } from '#libs/calls/call.ts';
import type { RetryPolicy } from '#libs/calls/retry.ts';

let rig: ForwardingRig;
afterEach(async () => rig.stop());

/** One answer of Claude, which has no mode for arbitrary JSON objects. */
const says =
  (content: string | object[], stop_reason = 'end_turn'): UpstreamScript =>
  (reply) =>
    reply.json(200, {
      id: 'msg_1',
      type: 'message',
      role: 'assistant',
      model: 'claude-test',
      content: typeof content === 'string' ? [{ type: 'text', text: content }] : content,
      stop_reason,
      usage: { input_tokens: 10, output_tokens: 5 },
    });

type Options = { stream?: boolean; policy?: Partial<RetryPolicy>; provider?: string; body?: object };

async function ask(
  scripts: UpstreamScript | readonly UpstreamScript[],
  { stream = false, policy, provider = 'anthropic', body = {} }: Options = {},
): Promise<Outcome> {
  rig = await startForwardingRig(scripts);
  const text = JSON.stringify({
    model: 'claude-sonnet-4-5',
    messages: [{ role: 'user', content: 'A city, please.' }],
    response_format: { type: 'json_object' },
    ...(stream ? { stream, stream_options: { include_usage: true } } : {}),
    ...body,
  });
  const request = chatRequest({ text, model: 'claude-sonnet-4-5', stream, includeUsage: stream });
  return await rig.forwarder.settle(
    request,
    { ...rig.target, provider },
    policy && { attemptsMax: 3, baseDelayMs: 1_000, maxDelayMs: 8_000, deadlineAt: rig.now() + 600_000, ...policy },
  );
}

function messageOf(outcome: Outcome): unknown {
  if (outcome.kind !== 'json') throw new Error(`no whole answer: ${JSON.stringify(outcome)}`);
  const { choices } = JSON.parse(outcome.body.toString()) as { choices: { message: unknown }[] };
  return choices[0]?.message;
}

const notMet = { kind: 'failed', error: { kind: 'provider_failed', code: 'json_object_not_met', param: null } };
const usage = { inputTokens: 10, outputTokens: 5 };

describe('a JSON object of a model that has no mode for it', () => {
  test.each([
    ['as it is', '{"city":"Paris"}'],
    ['between white space', ' \n{"city":"Paris"}\n'],
    ['in a fence', '```json\n{"city":"Paris"}\n```'],
    ['in a fence without a language', '```\n{"city":"Paris"}\n```\n'],
    ['in a fence on one line', '```json {"city":"Paris"} ```'],
    ['in a fence whose end was a stop sequence', '```json\n{"city":"Paris"}\n'],
  ])('is the content and nothing else: %s', async (_how, said) => {
    const outcome = await ask(says(said));
    expect(messageOf(outcome)).toMatchObject({ role: 'assistant', content: '{"city":"Paris"}' });
    expect(outcome).toMatchObject({ status: 200, usage, finishReason: 'stop', attempts: [{ status: 200 }] });
  });

  test.each([
    ['prose', 'Paris is a city.'],
    ['prose before the object', 'Here it is: {"city":"Paris"}'],
    ['prose behind the object', '{"city":"Paris"} There you are.'],
    ['two objects', '{"city":"Paris"}{"city":"Rome"}'],
    ['a list', '[{"city":"Paris"}]'],
    ['half an object', '{"city":'],
    ['nothing', ''],
  ])('that is %s is no answer, but was paid for', async (_what, said) => {
    const outcome = await ask(says(said));
    expect(outcome).toMatchObject({ ...notMet, lostAnswer: { usage, model: 'claude-test' } });
    expect(outcome.attempts).toMatchObject([{ status: 200, errorCode: null }]);
  });

  test('that is missing is reported with the beginning of the text that came instead', async () => {
    const outcome = await ask(says('I would rather talk.'));
    expect(outcome).toMatchObject({ error: { message: expect.stringContaining('"I would rather talk."') } });
  });

  test.each([
    ['cut off by the limit of tokens', '{"city":"Par', 'max_tokens', 'length'],
    ['refused by the model', 'I cannot.', 'refusal', 'content_filter'],
  ])('passes as it is when it was %s', async (_what, said, stopReason, finishReason) => {
    const outcome = await ask(says(said, stopReason));
    expect(messageOf(outcome)).toMatchObject({ content: said });
    expect(outcome).toMatchObject({ status: 200, finishReason });
  });

  test('is not required of an answer that calls tools', async () => {
    const tools = [{ type: 'function', function: { name: 'look', parameters: { type: 'object', properties: {} } } }];
    const call = { type: 'tool_use', id: 'call_1', name: 'look', input: {} };
    const outcome = await ask(says([{ type: 'text', text: 'Let me look.' }, call], 'tool_use'), { body: { tools } });
    expect(messageOf(outcome)).toMatchObject({ tool_calls: [{ id: 'call_1' }] });
  });

  test('is not required of a provider’s error, which is not changed', async () => {
    const error = { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } };
    expect(await ask((reply) => reply.json(529, error))).toMatchObject({ kind: 'json', status: 529 });
  });

  test('is requested whole for a stream, so that no part of another answer is sent', async () => {
    const outcome = await ask(says('```json\n{"city":"Paris"}\n```'), { stream: true });
    if (outcome.kind !== 'stream') throw new Error('no stream');
    const { payloads, summary } = await readStream(outcome);
    const chunks = payloads.map((payload) => JSON.parse(payload) as { choices: { delta: { content?: string } }[] });
    expect(chunks.map(({ choices }) => choices[0]?.delta.content ?? '').join('')).toBe('{"city":"Paris"}');
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { prompt_tokens: 10, completion_tokens: 5 } });
    expect(summary).toMatchObject({ complete: true, usage, finishReason: 'stop' });
    expect(JSON.parse(rig.upstream.requests[0]?.body.toString() ?? '')).not.toHaveProperty('stream');
    expect(rig.forwarder.counters()).toMatchObject({ openStreams: 0 });
  });

  test('that is missing ends the call for a stream before it has begun', async () => {
    expect(await ask(says('Paris.'), { stream: true })).toMatchObject({ ...notMet, lostAnswer: { usage } });
  });

  test('is requested again if the caller’s retries list 502, and the usage of all attempts counts', async () => {
    const outcome = await ask([says('Paris.'), says('Rome.'), says('{"city":"Rome"}')], {
      policy: { statuses: [502] },
    });
    expect(messageOf(outcome)).toMatchObject({ content: '{"city":"Rome"}' });
    expect(outcome).toMatchObject({
      usage: { inputTokens: 30, cachedTokens: 0, outputTokens: 15, reasoningTokens: 0 },
    });
    expect(rig.upstream.requests).toHaveLength(3);
  });

  test('that is missing in every attempt is a failure with the usage of all of them', async () => {
    const lost = (inputTokens: number) => ({ lostAnswer: { usage: { inputTokens } } });
    expect(await ask(says('Paris.'), { policy: { statuses: [502] } })).toMatchObject({ ...notMet, ...lost(30) });
    await rig.stop();
    const outcome = await ask([says('Paris.'), (reply) => reply.cut()], {
      policy: { statuses: [502], attemptsMax: 2 },
    });
    expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'upstream_connection_lost' }, ...lost(10) });
    await rig.stop();
    const error = { type: 'error', error: { type: 'api_error', message: 'no' } };
    const refused = await ask([says('Paris.'), (reply) => reply.json(500, error)], {
      policy: { statuses: [502], attemptsMax: 2 },
    });
    expect(refused).toMatchObject({ kind: 'json', status: 500, usage });
  });

  test.each([[undefined], [[500, 503]]])(
    'is asked for once where the retries are not for it (%j)',
    async (statuses) => {
      expect(await ask(says('Paris.'), { policy: statuses ? { statuses } : {} })).toMatchObject(notMet);
      expect(rig.upstream.requests).toHaveLength(1);
    },
  );

  test('that is missing is not a failure of the provider for a circuit breaker', async () => {
    const left: unknown[] = [];
    const traffic = { acquire: () => ({ release: (ended: unknown) => left.push(ended) }), stop: () => {} };
    rig = await startForwardingRig(says('Paris.'), { traffic });
    const body = { model: 'claude-sonnet-4-5', messages: [{ role: 'user', content: 'Hi' }] };
    const text = JSON.stringify({ ...body, response_format: { type: 'json_object' } });
    const target = { ...rig.target, provider: 'anthropic', credentialId: 'vk_1' };
    expect(await rig.forwarder.settle(chatRequest({ text }), target)).toMatchObject(notMet);
    expect(left).toMatchObject([{ kind: 'json', status: 200 }]);
  });

  test('is found in an answer in each of the formats that have no mode for it', async () => {
    const converse =
      (text: string): UpstreamScript =>
      (reply) =>
        reply.json(200, {
          output: { message: { role: 'assistant', content: [{ text }] } },
          stopReason: 'end_turn',
          usage: { inputTokens: 10, outputTokens: 5 },
        });
    const body = { model: 'amazon.nova-pro-v1:0' };
    const outcome = await ask(converse('```json\n{"a":1}\n```'), { provider: 'bedrock', stream: true, body });
    if (outcome.kind !== 'stream') throw new Error('no stream');
    expect((await readStream(outcome)).payloads[0]).toContain(String.raw`"{\"a\":1}"`);
    expect(rig.upstream.requests[0]?.path).toMatch(/\/converse$/);
    await rig.stop();
    expect(await ask(converse('No.'), { provider: 'bedrock', body })).toMatchObject(notMet);
  });

  test('is not required where text was requested, or where the provider has a mode for it', async () => {
    const text = await ask(says('Paris.'), { body: { response_format: { type: 'text' } } });
    expect(messageOf(text)).toMatchObject({ content: 'Paris.' });
    await rig.stop();
    const completion = {
      choices: [{ index: 0, message: { role: 'assistant', content: 'Hi' }, finish_reason: 'stop' }],
    };
    const own = await ask((reply) => reply.json(200, completion), { provider: 'openai' });
    expect(messageOf(own)).toMatchObject({ content: 'Hi' });
    expect(JSON.parse(rig.upstream.requests[0]?.body.toString() ?? '')).toMatchObject({
      response_format: { type: 'json_object' },
    });
  });

  test('is only searched for in texts of a length that models write', async () => {
    const outcome = await ask(says(`{"city":"${'a'.repeat(1_100_000)}"}`));
    expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'upstream_response_too_large' } });
    expect(outcome).toMatchObject({ lostAnswer: { usage } });
  });
});
