import { openAiCompatible } from '../openai-compatible.ts';
import { openMistralAmend } from './amend.ts';
import { shortToolIds, thoughtsToContent } from './rewrite-messages.ts';

/** Close enough to OpenAI's API to pass bytes through (MISTRAL-1). */
export const mistral = openAiCompatible({
  id: 'mistral',
  aliases: ['mistral-ai'],
  baseUrl: 'https://api.mistral.ai/v1',
  operations: ['chat', 'embeddings', 'models'],
  // Usage is sent without asking. Unknown members, like `stream_options`, are rejected with 422.
  asksForUsage: false,
  dialect: {
    renames: { seed: 'random_seed', max_completion_tokens: 'max_tokens' },
    values: { tool_choice: { required: 'any' } },
    removes: ['stream_options'],
    messages: [
      { hint: 'tool_call_id', rewrite: shortToolIds },
      { hint: 'content_blocks', rewrite: thoughtsToContent },
    ],
    finishReasons: { model_length: 'length', error: 'failure' },
    usageBesideChoices: true,
    answers: { hints: ['"tool_calls"', '"content":[', '"content": [', '"thinking"'], open: openMistralAmend },
    notes: [
      'ids of other providers’ tool calls are shortened',
      'tool calls get index and type',
      'thoughts are not part of content',
    ],
  },
});
