import { z } from 'zod';
import { expiresAfter } from './batches.ts';
import { cursor, listOf, queryInteger, wholeNumberText } from '../lists.ts';

// Files as clients send and see them: FILE-1, FILE-3, FILE-7.

export const uploadPurposes = ['assistants', 'batch', 'fine-tune', 'vision', 'user_data', 'evals'] as const;
const filePurposes = [...uploadPurposes, 'assistants_output', 'batch_output', 'fine-tune-results'] as const;

/** The parts of POST /files as SDKs write them, for the document. Their content is checked by FileUploadFields. */
export const FileUpload = z
  .object({
    file: z.string().meta({ format: 'binary', description: 'The content, with its filename.' }),
    purpose: z.enum(uploadPurposes),
    'expires_after[anchor]': expiresAfter().shape.anchor.optional(),
    'expires_after[seconds]': expiresAfter().shape.seconds.optional(),
  })
  .meta({ id: 'FileUpload' });

/**
 * The form fields of POST /files in addition to the file, each a text: `expires_after` is the object made from the
 * bracketed names.
 */
export const FileUploadFields = z.object({
  purpose: z.enum(uploadPurposes),
  expires_after: z
    .preprocess(
      (value) =>
        typeof value === 'object' && value !== null && 'seconds' in value
          ? { ...value, seconds: wholeNumberText(value.seconds) }
          : value,
      expiresAfter().optional(),
    )
    .optional(),
});
export type FileUploadFields = z.output<typeof FileUploadFields>;

export const FileListQuery = z.object({
  purpose: z.enum(filePurposes).optional(),
  order: z.enum(['asc', 'desc']).default('desc'),
  after: cursor(),
  limit: queryInteger({ min: 1, max: 10_000, fallback: 10_000 }),
});
export type FileListQuery = z.output<typeof FileListQuery>;

export const FileObject = z.object({
  id: z.string(),
  object: z.literal('file'),
  bytes: z.int(),
  created_at: z.int(),
  expires_at: z.int().nullable(),
  filename: z.string(),
  purpose: z.enum(filePurposes),
  status: z.enum(['uploaded', 'processed', 'error']),
  status_details: z.string().nullable(),
});
export type FileObject = z.output<typeof FileObject>;

export const FileList = listOf(FileObject);

export const FileDeletion = z.object({ id: z.string(), object: z.literal('file'), deleted: z.boolean() });
export type FileDeletion = z.output<typeof FileDeletion>;
