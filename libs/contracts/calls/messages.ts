import { z } from 'zod';
import { outputBound } from './output-bounds.ts';

// POST /v1/messages (platform.claude.com/docs, "Messages"). Only what the gateway itself reads is checked, because members
// and betas are added all the time and must reach Anthropic as the client has written them.

const Content = z.union([z.string(), z.array(z.looseObject({ type: z.string() }))]);

export const MessageRequest = z.looseObject({
  model: z.string(),
  messages: z.array(z.looseObject({ role: z.string(), content: Content })).min(1),
  max_tokens: outputBound(),
  stream: z.boolean().optional(),
});

export const MessageResponse = z.looseObject({
  id: z.string(),
  type: z.literal('message'),
  role: z.literal('assistant'),
  content: z.array(z.looseObject({ type: z.string() })),
  model: z.string(),
  stop_reason: z.string().nullable(),
  usage: z.looseObject({ input_tokens: z.int(), output_tokens: z.int() }),
});

/** The answer of POST /v1/messages/count_tokens. */
export const TokenCount = z.looseObject({ input_tokens: z.int() });
