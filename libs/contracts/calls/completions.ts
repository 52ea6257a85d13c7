import { z } from 'zod';
import { completionBreach } from './body-rules.ts';
import { StreamOptions, Usage } from './chat.ts';
import { addBreach, decimal, int64, integer } from '../scalars.ts';
import { tokenInput } from './token-input.ts';

// POST /completions (CALL-1); the prompt can be null (CALL-6).

export const CompletionRequest = z
  .looseObject({
    model: z.string(),
    prompt: tokenInput(Number.POSITIVE_INFINITY, true),
    best_of: integer({ min: 0, max: 20 }).nullish(),
    echo: z.boolean().nullish(),
    frequency_penalty: decimal(-2, 2).nullish(),
    logit_bias: z.record(z.string(), decimal(-100, 100)).nullish(),
    logprobs: integer({ min: 0, max: 5 }).nullish(),
    max_tokens: integer({ min: 0 }).nullish(),
    n: integer({ min: 1, max: 128 }).nullish(),
    presence_penalty: decimal(-2, 2).nullish(),
    seed: int64().nullish(),
    stop: z.union([z.string(), z.array(z.string()).min(1).max(4)]).nullish(),
    stream: z.boolean().nullish(),
    stream_options: StreamOptions.nullish(),
    suffix: z.string().nullish(),
    temperature: decimal(0, 2).nullish(),
    top_p: decimal(0, 1).nullish(),
    user: z.string().nullish(),
  })
  .check((context) => {
    const breach = completionBreach(context.value);
    if (breach !== null) addBreach(context, breach);
  });
export type CompletionRequest = z.output<typeof CompletionRequest>;

/** The streamed and the whole object share one shape. */
export const CompletionResponse = z.looseObject({
  id: z.string(),
  object: z.literal('text_completion'),
  created: z.int(),
  model: z.string(),
  choices: z.array(
    z.looseObject({
      index: z.int(),
      text: z.string(),
      finish_reason: z.enum(['stop', 'length', 'content_filter']).nullable(),
      logprobs: z
        .looseObject({
          text_offset: z.array(z.int()).optional(),
          token_logprobs: z.array(z.number().nullable()).optional(),
          tokens: z.array(z.string()).optional(),
          top_logprobs: z.array(z.record(z.string(), z.number()).nullable()).nullish(),
        })
        .nullish(),
    }),
  ),
  system_fingerprint: z.string().nullish(),
  usage: Usage.nullish(),
});
