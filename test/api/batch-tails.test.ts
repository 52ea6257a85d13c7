import { afterAll, beforeAll, expect, test } from 'vitest';
import { completion } from '#test/forwarding-rig.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, type Upstream, type UpstreamReply } from '#test/upstream.ts';
import { chatLines, runBatch } from './batch-kit.ts';
import { storeVirtualKey } from './scripted-provider.ts';
import { sdks, type Sdk } from './sdk.ts';

const [sdk] = sdks as [Sdk];

let platform: TestPlatform;
let upstream: Upstream;
beforeAll(async () => {
  upstream = await startUpstream();
  // One chunk of eight lines at a time.
  const chunks = { SLUICE_CHUNKS_MAX: '1', SLUICE_CHUNK_LINES: '8' };
  platform = await startPlatform({ environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8', ...chunks } });
  await storeVirtualKey(platform, 'scripted', upstream.url.href);
});
afterAll(async () => {
  await platform.stop();
  await upstream.stop();
});

test('one line that has no answer for long does not keep the lines after it from being called', async () => {
  const total = 40;
  let hanging: UpstreamReply | undefined;
  let answered = 0;
  upstream.script((reply) => {
    if (hanging === undefined) hanging = reply;
    else {
      reply.json(200, completion);
      answered += 1;
      if (answered === total - 1) hanging.json(200, completion);
    }
  });
  const client = new sdk.OpenAI({ baseURL: platform.baseUrl, apiKey: platform.adminKey });
  const batch = await runBatch(sdk, client, chatLines(total, { model: '@scripted/any' }));
  expect(batch).toMatchObject({ status: 'completed', request_counts: { total, completed: total, failed: 0 } });
});
