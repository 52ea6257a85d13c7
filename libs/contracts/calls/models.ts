import { z } from 'zod';

// GET /models (MODEL-1).

export const ModelObject = z.looseObject({
  id: z.string(),
  object: z.literal('model'),
  created: z.int(),
  owned_by: z.string(),
});
export type ModelObject = z.output<typeof ModelObject>;

export const ModelList = z.object({ object: z.literal('list'), data: z.array(ModelObject) });
