import type { FileStore, StoredFile } from '../../tuning/file-store.ts';
import type { Call, Received, Route } from '../wire-format.ts';
import { action, notFound } from './action.ts';
import { missing, refuse } from './checks.ts';
import { pageOf } from './page.ts';

const purposes = ['assistants', 'batch', 'fine-tune', 'vision', 'user_data', 'evals'];
const expirySeconds = { min: 3_600, max: 2_592_000 };
const pages = { limitDefault: 10_000, limitMax: 10_000 };

/** POST and GET /v1/files, GET and DELETE /v1/files/{id}, GET /v1/files/{id}/content. */
export function findFileRoute(files: FileStore, method: string, path: string): Route | undefined {
  const [, , area, id, part, ...rest] = path.split('/');
  if (area !== 'files' || rest.length > 0) return undefined;
  const key = `${method} ${id === undefined ? 'all' : (part ?? 'one')}`;
  const found = (id: string | undefined): StoredFile =>
    files.find(id ?? '') ?? notFound(`No such File object: ${id ?? ''}`, 'id');
  switch (key) {
    case 'POST all':
      return { name: 'POST /v1/files', reads: 'form', call: (received) => upload(files, received) };
    case 'GET all':
      return {
        name: 'GET /v1/files',
        reads: 'anything',
        call: (received) => action(received, '', () => listOf(files, received)),
      };
    case 'GET one':
      return {
        name: 'GET /v1/files/{id}',
        reads: 'anything',
        call: (received) => action(received, '', () => fileObject(found(id))),
      };
    case 'DELETE one':
      return {
        name: 'DELETE /v1/files/{id}',
        reads: 'anything',
        call: (received) =>
          action(received, '', () => ({ id: found(id).id, object: 'file', deleted: files.remove(id ?? '') })),
      };
    case 'GET content':
      return {
        name: 'GET /v1/files/{id}/content',
        reads: 'anything',
        call: (received) => ({
          ...action(received, '', () => null),
          contentType: 'application/octet-stream',
          body: () => found(id).bytes,
        }),
      };
    default:
      return undefined;
  }
}

/** A fault is given by the file's name, without its extension. */
async function upload(files: FileStore, received: Received): Promise<Call> {
  const file = received.form?.get('file');
  const purpose = received.form?.get('purpose');
  if (file === undefined || file === null || typeof file === 'string') return missing('file');
  if (typeof purpose !== 'string') return missing('purpose');
  if (!purposes.includes(purpose)) {
    const supported = purposes.map((name) => `'${name}'`).join(', ');
    return refuse(`'${purpose}' is not one of [${supported}] - 'purpose'`, 'purpose', null);
  }
  const seconds = received.form?.get('expires_after[seconds]');
  const expiresAfterMs = typeof seconds === 'string' ? readExpiry(seconds) : undefined;
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (bytes.length === 0) return refuse('File is empty.', 'file', null);
  return action(received, file.name.replace(/\.[a-z]+$/, ''), () =>
    fileObject(
      files.add({ bytes, filename: file.name, purpose, ...(expiresAfterMs === undefined ? {} : { expiresAfterMs }) }),
    ),
  );
}

function readExpiry(text: string): number {
  const seconds = Number(text);
  const { min, max } = expirySeconds;
  if (Number.isInteger(seconds) && seconds >= min && seconds <= max) return seconds * 1_000;
  return refuse(
    `Invalid 'expires_after.seconds': expected an integer from ${min} to ${max}.`,
    'expires_after.seconds',
    null,
  );
}

function listOf(files: FileStore, { query }: Received) {
  const parameters = new URLSearchParams(query);
  const purpose = parameters.get('purpose');
  const matching = files.list().filter((file) => purpose === null || file.purpose === purpose);
  const ordered = parameters.get('order') === 'asc' ? matching : matching.reverse();
  const { page, hasMore } = pageOf(ordered, query, pages);
  const data = page.map((file) => fileObject(file));
  return { object: 'list', data, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null, has_more: hasMore };
}

function fileObject({ id, bytes, createdAtMs, expiresAtMs, filename, purpose }: StoredFile) {
  return {
    object: 'file',
    id,
    purpose,
    filename,
    bytes: bytes.length,
    created_at: Math.floor(createdAtMs / 1_000),
    expires_at: expiresAtMs === undefined ? null : Math.floor(expiresAtMs / 1_000),
    status: 'processed',
    status_details: null,
  };
}
