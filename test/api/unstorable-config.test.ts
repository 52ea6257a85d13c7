import { afterAll, beforeAll, expect, test } from 'vitest';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { postJson } from './scripted-provider.ts';

let platform: TestPlatform;
beforeAll(async () => {
  platform = await startPlatform({ worker: false });
});
afterAll(() => platform.stop());

// A config that came with the call is kept whole in `batch.created`, which is jsonb. (A stored config is checked.)
test.for(['a\0b', '\ud800'])('an inline config of a batch that holds %j is refused with 400', async (text) => {
  const response = await postJson(platform, '/batches', {
    input_file_id: 'file-x',
    endpoint: '/v1/chat/completions',
    completion_window: '24h',
    gateway_options: { config: { provider: 'openai', api_key: 'x', override_params: { user: text } } },
  });
  expect({ status: response.status, body: await response.text() }).toMatchObject({ status: 400 });
});
