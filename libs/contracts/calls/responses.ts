import { z } from 'zod';
import { outputBounds } from './output-bounds.ts';

// POST /v1/responses (platform.openai.com/docs/api-reference/responses/create). Only what the gateway itself reads is checked,
// because items and tools are added all the time and must reach the provider as the client has written them.

export const ResponseRequest = z.looseObject({
  ...outputBounds,
  // A prompt that the provider stores can name the model.
  model: z.string().nullish(),
  input: z.union([z.string(), z.array(z.looseObject({}))]).nullish(),
  instructions: z.string().nullish(),
  tools: z.array(z.looseObject({})).nullish(),
  stream: z.boolean().nullish(),
});

export const ResponseObject = z.looseObject({
  id: z.string(),
  object: z.literal('response'),
  created_at: z.number(),
  status: z.string(),
  model: z.string(),
  output: z.array(z.looseObject({ type: z.string() })),
  usage: z.looseObject({ input_tokens: z.int(), output_tokens: z.int(), total_tokens: z.int() }).nullish(),
});
