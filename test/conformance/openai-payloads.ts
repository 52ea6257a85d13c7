// Payloads in OpenAI's own shape, of which those of other dialects are variations.

export const head = { id: 'chatcmpl-1', created: 1_770_000_000, model: 'gpt-test-2026' };
export const usage = {
  prompt_tokens: 20,
  completion_tokens: 9,
  total_tokens: 29,
  prompt_tokens_details: { cached_tokens: 8 },
  completion_tokens_details: { reasoning_tokens: 4 },
};
export const counts = { prompt: 20, completion: 9, cached: 8, reasoning: 4 };

export const completion = (message: object, finish: string) => ({
  body: {
    ...head,
    object: 'chat.completion',
    choices: [
      { index: 0, message: { role: 'assistant', content: null, refusal: null, ...message }, finish_reason: finish },
    ],
    usage,
  },
});
export const chunk = (delta: object, finish: string | null = null) => ({
  ...head,
  object: 'chat.completion.chunk',
  choices: [{ index: 0, delta, finish_reason: finish }],
  usage: null,
});
export const stream = (finish: string, ...deltas: object[]) => ({
  lines: [
    chunk({ role: 'assistant', content: '', refusal: null }),
    ...deltas.map((delta) => chunk(delta)),
    chunk({}, finish),
    { ...head, object: 'chat.completion.chunk', choices: [], usage },
  ],
});

const toolCall = (id: string, name: string, input: string) => ({
  id,
  type: 'function',
  function: { name, arguments: input },
});
export const tools = ['weather', 'time'].map((name) => ({
  type: 'function',
  function: { name, parameters: { type: 'object', properties: { city: { type: 'string' } } } },
}));
export const parallel = [toolCall('call_1', 'weather', '{"city":"Köln"}'), toolCall('call_2', 'time', '{}')];
export const parallelStream = stream(
  'tool_calls',
  { tool_calls: [{ index: 0, ...toolCall('call_1', 'weather', '') }] },
  { tool_calls: [{ index: 0, function: { arguments: '{"city":' } }] },
  { tool_calls: [{ index: 0, function: { arguments: '"Köln"}' } }] },
  { tool_calls: [{ index: 1, ...toolCall('call_2', 'time', '{}') }] },
);
