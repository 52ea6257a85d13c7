import { z } from 'zod';
import { integerText } from '../scalars.ts';

// GET /models (MODEL-1).

export const ModelObject = z.looseObject({
  id: z.string(),
  object: z.literal('model'),
  created: z.int(),
  owned_by: z.string(),
});
export type ModelObject = z.output<typeof ModelObject>;

export const ModelList = z.object({ object: z.literal('list'), data: z.array(ModelObject) });

/** The pages of Anthropic's lists (https://platform.claude.com/docs/en/api/models/list). */
export const AnthropicPageQuery = {
  limit: integerText({ min: 1, max: 1_000 }).optional(),
  after_id: z.string().max(500).optional(),
  before_id: z.string().max(500).optional(),
};
export type AnthropicPageQuery = z.output<z.ZodObject<typeof AnthropicPageQuery>>;

export const AnthropicModel = z.object({
  type: z.literal('model'),
  id: z.string(),
  display_name: z.string(),
  created_at: z.iso.datetime(),
});
export type AnthropicModel = z.output<typeof AnthropicModel>;

export const AnthropicModelList = z.object({
  data: z.array(AnthropicModel),
  first_id: z.string().nullable(),
  last_id: z.string().nullable(),
  has_more: z.boolean(),
});
export type AnthropicModelList = z.output<typeof AnthropicModelList>;
