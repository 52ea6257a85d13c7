import { describe, expect, test } from 'vitest';
import { estimateStreamed } from './estimate-usage.ts';
import { openRelayMeter } from '../relay/relay-meter.ts';
import { createStreamMeter } from './streams/stream-meter.ts';
import { addUsage, readAnswerUsage } from './usage.ts';

const none = { inputTokens: 0, cachedTokens: 0, outputTokens: 0, reasoningTokens: 0 };

describe('what an answer says of its usage', () => {
  test.each<[string, Record<string, unknown>, object | null]>([
    ['nothing', {}, null],
    ['tokens', { usage: { prompt_tokens: 3, completion_tokens: 2 } }, { ...none, inputTokens: 3, outputTokens: 2 }],
    [
      'audio, and a class of service that has its own price',
      {
        usage: {
          prompt_tokens: 30,
          completion_tokens: 20,
          prompt_tokens_details: { cached_tokens: 4, audio_tokens: 10 },
          completion_tokens_details: { audio_tokens: 15 },
        },
        service_tier: 'flex',
      },
      {
        ...none,
        inputTokens: 30,
        cachedTokens: 4,
        audioInputTokens: 10,
        outputTokens: 20,
        audioOutputTokens: 15,
        serviceTier: 'flex',
      },
    ],
    [
      'the standard class of service, which is nothing',
      { usage: { prompt_tokens: 1, completion_tokens: 1 }, service_tier: 'on_demand' },
      { ...none, inputTokens: 1, outputTokens: 1 },
    ],
    [
      'images, by the names of the images API',
      { usage: { input_tokens: 50, output_tokens: 100, input_tokens_details: { text_tokens: 10, image_tokens: 40 } } },
      { ...none, inputTokens: 50, imageInputTokens: 40, outputTokens: 100 },
    ],
    [
      'audio, by the names of transcriptions',
      { usage: { type: 'tokens', input_tokens: 14, output_tokens: 45, input_token_details: { audio_tokens: 14 } } },
      { ...none, inputTokens: 14, audioInputTokens: 14, outputTokens: 45 },
    ],
    [
      'reasoning beside the output, as the total shows',
      {
        usage: {
          prompt_tokens: 10,
          completion_tokens: 5,
          total_tokens: 115,
          completion_tokens_details: { reasoning_tokens: 100 },
        },
      },
      { ...none, inputTokens: 10, outputTokens: 105, reasoningTokens: 100 },
    ],
    [
      'searches of a response',
      {
        usage: { input_tokens: 1, output_tokens: 1 },
        output: [{ type: 'web_search_call' }, { type: 'message' }, { type: 'web_search_call' }],
      },
      { ...none, inputTokens: 1, outputTokens: 1, searches: 2 },
    ],
  ])('%s', (_what, answer, expected) => expect(readAnswerUsage(answer)).toEqual(expected));

  test('the sum of two usages has every figure that one of them has', () => {
    const one = { ...none, inputTokens: 1, cacheWriteTokens: 2, serviceTier: 'flex' };
    const other = { ...none, inputTokens: 4, searches: 1 };
    expect(addUsage(one, other)).toEqual({ ...one, inputTokens: 5, searches: 1 });
    expect(addUsage(null, other)).toBe(other);
  });
});

describe('what a body that passes through says of what was used', () => {
  const read = (body: unknown) => {
    const request = { operation: 'audio' as const, body: Buffer.alloc(0) };
    const meter = openRelayMeter('application/json', { request, target: { secretOrigin: '' } });
    meter.push(Buffer.from(JSON.stringify(body)));
    return meter.read();
  };

  test.each<[string, unknown, object | null]>([
    ['seconds that a transcription bills', { text: 'Hi', usage: { type: 'duration', seconds: 9 } }, { seconds: 9 }],
    ['seconds of a verbose transcription', { text: 'Hi', duration: 8.47 }, { seconds: 8.47 }],
    ['a ranking', { results: [], meta: { billed_units: { search_units: 2 } } }, { searches: 2 }],
    ['a year of audio, at most eleven days of it', { text: '', duration: 31_536_000 }, { seconds: 1_000_000 }],
    ['an absurd number', { usage: { type: 'duration', seconds: -1 } }, null],
    ['nothing', { data: [] }, null],
  ])('%s', (_what, body, units) => expect(read(body)).toMatchObject({ usage: null, units }));
});

describe('what a stream has used that says nothing of it', () => {
  test('its text, reasoning and the arguments of its calls are counted', () => {
    const meter = createStreamMeter();
    const said = (delta: object): void => {
      meter.read(JSON.stringify({ choices: [{ index: 0, delta }] }));
    };
    said({ role: 'assistant', content: '' });
    said({ content: '12345' });
    said({ reasoning_content: '123' });
    said({ tool_calls: [{ index: 0, function: { name: 'f', arguments: '{"a":1}' } }] });
    meter.read(JSON.stringify({ choices: [{ index: 0, text: '12' }] }));
    expect(meter.chars()).toBe(17);
    expect(meter.usage()).toBeNull();
  });

  test('four bytes count as a token; an image is not counted by its bytes', () => {
    expect(estimateStreamed(Buffer.alloc(400, 'a'), 41)).toEqual({ ...none, inputTokens: 100, outputTokens: 11 });
    const image = `data:image/png;base64,${'A'.repeat(1_000_000)}`;
    const body = JSON.stringify({
      messages: [{ content: 'What is this? '.repeat(2_000) }, { url: image }, { url: image }],
    });
    const { inputTokens } = estimateStreamed(Buffer.from(body), 0);
    expect(inputTokens).toBeGreaterThan(2_000 + 7_000);
    expect(inputTokens).toBeLessThan(2_000 + 7_100);
  });
});
