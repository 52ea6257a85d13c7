import { openAiCompatible } from '../openai-compatible.ts';
import { openMistralAmend } from './amend.ts';
import { shortToolIds, thoughtsToContent } from './rewrite-messages.ts';

/** Near enough to OpenAI for bytes to pass (MISTRAL-1). */
export const mistral = openAiCompatible({
  id: 'mistral',
  aliases: ['mistral-ai'],
  baseUrl: 'https://api.mistral.ai/v1',
  operations: ['chat', 'embeddings', 'models'],
  // Usage comes unasked; unknown members are refused with 422, `stream_options` among them.
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
    notes: ['ids of foreign tool calls fit', 'tool calls have index and type', 'thoughts are no content'],
  },
});
