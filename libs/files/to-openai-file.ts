import { toUnixSeconds } from '#libs/kernel/clock.ts';
import type { FileRow } from './file-model.ts';

export type OpenAiFile = {
  id: string;
  object: 'file';
  bytes: number;
  created_at: number;
  expires_at: number | null;
  filename: string;
  purpose: string;
  status: 'processed';
  status_details: null;
};

/** Returns the public file object. `status` is deprecated, but SDKs need it: their `waitForProcessing` polls it. */
export function toOpenAiFile(file: FileRow): OpenAiFile {
  return {
    id: file.id,
    object: 'file',
    bytes: file.bytes,
    created_at: toUnixSeconds(file.created_at),
    expires_at: toUnixSeconds(file.expires_at),
    filename: file.filename,
    purpose: file.purpose,
    status: 'processed',
    status_details: null,
  };
}
