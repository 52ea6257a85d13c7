/** A chat completion, as it is answered to the example of one. */
export const chatAnswer = {
  id: 'chatcmpl-abc',
  object: 'chat.completion',
  created: 1795470000,
  model: 'sim-small',
  choices: [
    {
      index: 0,
      message: { role: 'assistant', content: 'Air scatters blue light more than red.', refusal: null, annotations: [] },
      logprobs: null,
      finish_reason: 'stop',
    },
  ],
  usage: {
    prompt_tokens: 14,
    completion_tokens: 8,
    total_tokens: 22,
    prompt_tokens_details: { cached_tokens: 0, audio_tokens: 0 },
    completion_tokens_details: {
      reasoning_tokens: 0,
      audio_tokens: 0,
      accepted_prediction_tokens: 0,
      rejected_prediction_tokens: 0,
    },
  },
  service_tier: 'default',
  system_fingerprint: 'fp_51a1ce0000',
};
