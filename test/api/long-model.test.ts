import { expect, test } from 'vitest';
import { startPlatform } from '#test/platform.ts';
import { startUpstream } from '#test/upstream.ts';
import { chatLines, createBatch, ended } from './batch-kit.ts';
import { storeVirtualKey } from './scripted-provider.ts';
import { sdks } from './sdk.ts';

// A name is cut to 512 UTF-16 units for the usage of `batch.lines_settled`. A cut through a surrogate pair makes a text that
// jsonb refuses, and with it the results of the whole group, which were paid for.
test(
  'a provider that names its model by 511 letters and an emoji is paid once for each line',
  { timeout: 90_000 },
  async ({ onTestFinished }) => {
    const platform = await startPlatform({
      environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8', SLUICE_CHUNK_LINES: '5' },
    });
    onTestFinished(() => platform.stop());
    const calls = new Map<string, number>();
    const upstream = await startUpstream((reply, request) => {
      const { messages } = JSON.parse(request.body.toString()) as { messages: { content: string }[] };
      const text = messages[0]?.content ?? '';
      calls.set(text, (calls.get(text) ?? 0) + 1);
      reply.json(200, {
        object: 'chat.completion',
        model: text.includes('line-3.') ? `${'m'.repeat(511)}\u{1F600}` : 'm',
        choices: [{ index: 0, message: { role: 'assistant', content: 'Hello' }, finish_reason: 'stop' }],
        usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
      });
    });
    onTestFinished(() => upstream.stop());
    await storeVirtualKey(platform, 'odd', upstream.url.href);
    const [sdk] = sdks;
    if (!sdk) throw new Error('no SDK');
    const client = new sdk.OpenAI({ apiKey: platform.adminKey, baseURL: platform.baseUrl });
    const created = await createBatch(sdk, client, chatLines(5, { model: '@odd/x' }));
    const batch = await ended(client, created, 30_000).catch(() => client.batches.retrieve(created.id));
    expect({ status: batch.status, counts: batch.request_counts, calls: [...calls.values()] }).toEqual({
      status: 'completed',
      counts: { total: 5, completed: 5, failed: 0 },
      calls: [1, 1, 1, 1, 1],
    });
  },
);
