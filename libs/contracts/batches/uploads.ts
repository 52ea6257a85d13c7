import { z } from 'zod';
import { expiresAfter } from './batches.ts';
import { FileObject, uploadPurposes } from './files.ts';
import { integer, text } from '../scalars.ts';

// The Uploads API of OpenAI: a file that is sent in parts. `sha256`, and retrieving an upload with its parts, are ours.

/** Body of POST /uploads. */
export const CreateUploadRequest = z.strictObject({
  filename: text({ min: 1, max: 512 }),
  purpose: z.enum(uploadPurposes),
  bytes: integer({ min: 1, max: Number.MAX_SAFE_INTEGER }).describe('The size of the whole file, in bytes.'),
  mime_type: text({ min: 1, max: 255 }),
  expires_after: expiresAfter().nullish().describe('The lifetime of the file, starting when the upload is completed.'),
  sha256: z
    .string()
    .regex(/^[0-9a-f]{64}$/)
    .optional()
    .describe(
      'The SHA-256 of the whole file, as 64 hexadecimal digits. It is verified on completion and identifies an interrupted upload to resume.',
    ),
});

/** Body of POST /uploads/{id}/complete. */
export const CompleteUploadRequest = z.strictObject({
  part_ids: z
    .array(text({ min: 1, max: 200 }))
    .min(1)
    .max(10_000)
    .describe('The IDs of the parts, in the order of the file.'),
  md5: z
    .string()
    .regex(/^[0-9a-f]{32}$/i)
    .nullish()
    .describe('The MD5 of the whole file, as 32 hexadecimal digits.'),
});

/** The form of POST /uploads/{id}/parts. */
export const UploadPartForm = z.object({
  data: z.string().meta({ format: 'binary', description: 'The bytes of the part, at most 64 MiB.' }),
});

export const UploadPartObject = z.object({
  id: z.string(),
  object: z.literal('upload.part'),
  created_at: z.int(),
  upload_id: z.string(),
  bytes: z.int(),
  sha256: z.string(),
});
export type UploadPartObject = z.output<typeof UploadPartObject>;

export const UploadObject = z.object({
  id: z.string(),
  object: z.literal('upload'),
  bytes: z.int(),
  created_at: z.int(),
  expires_at: z.int(),
  filename: z.string(),
  purpose: z.enum(uploadPurposes),
  status: z.enum(['pending', 'completed', 'cancelled', 'expired']),
  file: FileObject.nullable(),
  /** Only in the answers to GET and to a creation that found an interrupted upload. */
  parts: z.array(UploadPartObject).optional(),
});
export type UploadObject = z.output<typeof UploadObject>;
