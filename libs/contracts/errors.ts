import { z } from 'zod';

/** The body of every answer that is an error; all four members are always present. */
export const ErrorResponse = z.object({
  error: z.object({
    message: z.string(),
    type: z.string(),
    param: z.string().nullable(),
    code: z.string().nullable(),
  }),
});
export type ErrorResponse = z.output<typeof ErrorResponse>;
