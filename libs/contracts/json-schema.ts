import { z } from 'zod';

/**
 * The JSON Schema (draft 2020-12) of the values that a schema accepts: for the OpenAPI document, and for the threads
 * that check batch files. Rules across fields are not included (body-rules.ts).
 */
export function toJsonSchema(schema: z.ZodType): Record<string, unknown> {
  const { $schema: _, '~standard': __, ...rest } = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'throw' });
  return rest;
}
