import { z } from 'zod';
import { integer } from '../scalars.ts';
import { tokenInput } from './token-input.ts';

// POST /embeddings (CALL-1).

export const EmbeddingRequest = z.looseObject({
  model: z.string(),
  input: tokenInput(2_048, false),
  encoding_format: z.enum(['float', 'base64']).nullish(),
  dimensions: integer({ min: 1 }).nullish(),
  user: z.string().nullish(),
});
export type EmbeddingRequest = z.output<typeof EmbeddingRequest>;

export const EmbeddingResponse = z.looseObject({
  object: z.literal('list'),
  data: z.array(
    z.looseObject({
      object: z.literal('embedding'),
      index: z.int(),
      embedding: z.union([z.array(z.number()), z.string()]),
    }),
  ),
  model: z.string(),
  usage: z.looseObject({ prompt_tokens: z.int(), total_tokens: z.int() }).optional(),
});
