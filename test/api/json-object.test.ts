import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { chatLine, resultsOf, runBatch } from './batch-kit.ts';
import { postJson } from './scripted-provider.ts';
import { getFailureCode, sdks, type Client } from './sdk.ts';

// JSON objects of a provider that has no mode for them: Claude's API, behind which the simulator's `sim-echo` says whatever
// the user said, JSON or not.

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform();
  const custom_host = `${new URL(platform.simulatorUrl).origin}/v1`;
  const key = { name: 'claude', slug: 'claude', provider: 'anthropic', key: 'sk-ant-0123456789', custom_host };
  const response = await postJson(platform, '/virtual-keys', key);
  if (!response.ok) throw new Error(await response.text());
});
afterAll(() => platform.stop());

const prose = 'Paris is a city, and I say so in words.';
const asked = (content: string, more: object = {}) => ({
  model: '@claude/sim-echo',
  messages: [{ role: 'user' as const, content }],
  response_format: { type: 'json_object' as const },
  ...more,
});

type LogList = { data: Record<string, unknown>[] };
const rowsOf = async (client: Client, query: Record<string, unknown>): Promise<LogList['data']> => {
  const list = async (): Promise<LogList> => await client.get('/logs', { query });
  return (await eventually(list, ({ data }) => data.length > 0)).data;
};

describe.each(sdks)('$name', (sdk) => {
  let client: Client;
  beforeAll(() => {
    client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl, maxRetries: 0 });
  });

  test.each([false, true])('prose is an error and no answer, recorded as a paid call (stream: %j)', async (stream) => {
    const traceId = `json-object-${sdk.name}-${stream}`;
    const error = await getFailureCode(
      client.chat.completions.create(asked(prose, { stream }), { headers: { 'x-gateway-trace-id': traceId } }),
    );
    expect(error).toBeInstanceOf(sdk.OpenAI.InternalServerError);
    expect(error).toMatchObject({
      status: 502,
      error: {
        message: expect.stringMatching(/^claude has no JSON mode .* "Paris is a city/),
        type: 'server_error',
        param: null,
        code: 'json_object_not_met',
      },
    });
    expect(await rowsOf(client, { trace_id: traceId })).toMatchObject([
      {
        status: 502,
        error_code: 'json_object_not_met',
        attempts: 1,
        stream,
        finish_reason: 'stop',
        usage: { input_tokens: expect.any(Number), output_tokens: expect.any(Number) },
      },
    ]);
  });

  test('an object in a fence is the object', async () => {
    const { choices } = await client.chat.completions.create(asked('```json\n{"city":"Paris"}\n```'));
    expect(choices).toMatchObject([{ finish_reason: 'stop', message: { content: '{"city":"Paris"}' } }]);
  });

  test('a config’s retries ask again, and its fallback goes to the next target', async () => {
    const traceId = `json-object-fallback-${sdk.name}`;
    const config = {
      strategy: { mode: 'fallback' },
      targets: [
        { virtual_key: 'claude', retry: { attempts: 2 } },
        { virtual_key: 'simulator', override_params: { model: 'sim-small' } },
      ],
    };
    const { choices } = await client.chat.completions.create(asked(prose, { model: 'sim-echo' }), {
      headers: { 'x-gateway-config': JSON.stringify(config), 'x-gateway-trace-id': traceId },
    });
    expect(JSON.parse(choices[0]?.message.content ?? '')).toBeTypeOf('object');
    expect(await rowsOf(client, { trace_id: traceId })).toMatchObject([{ status: 200, attempts: 4 }]);
  });

  test('a line of a batch that has no object is in the error file, after one call, and its tokens count', async () => {
    const batch = await runBatch(sdk, client, [
      chatLine('words', asked(prose)),
      chatLine('object', asked('{"city":"Paris"}')),
    ]);
    expect(batch).toMatchObject({ status: 'completed', request_counts: { total: 2, completed: 1, failed: 1 } });
    const { output, errors } = await resultsOf(client, batch);
    expect(output).toMatchObject([
      { custom_id: 'object', response: { body: { choices: [{ message: { content: '{"city":"Paris"}' } }] } } },
    ]);
    expect(errors).toMatchObject([
      {
        custom_id: 'words',
        response: null,
        error: { code: 'json_object_not_met', message: expect.stringContaining('has no JSON mode') },
      },
    ]);
    const rows = await eventually(
      () => rowsOf(client, { batch_id: batch.id }),
      ({ length }) => length === 2,
    );
    const row = rows.find(({ batch_line: line }) => line === 1);
    expect(row).toMatchObject({ error_code: 'json_object_not_met', attempts: 1 });
    const lost = row?.['usage'] as { output_tokens: number } | undefined;
    const kept = output[0]?.response?.body['usage'] as { completion_tokens: number } | undefined;
    expect(lost?.output_tokens).toBeGreaterThan(0);
    expect(batch.usage?.output_tokens).toBe((lost?.output_tokens ?? 0) + (kept?.completion_tokens ?? 0));
  });
});
