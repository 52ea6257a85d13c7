import { z } from 'zod';
import { FileDeletion, FileList, FileListQuery, FileObject } from '#libs/contracts/batches/files.ts';
import { toOpenAiFile } from '#libs/files/to-openai-file.ts';
import type { Files } from '#libs/files/files.ts';
import { toListResponse } from '#libs/http/answers/list-response.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { toEventMetadata } from '#libs/identity/call-identity.ts';
import { atProvider, orAtProvider } from '../calls/or-at-provider.ts';
import type { RelayDeps } from '../calls/relay-call.ts';
import { sendFileContent, type FileContentDeps } from './file-content.ts';
import { uploadFile, type UploadFileDeps } from './upload-file.ts';
import { uploadRoutes, type UploadDeps } from './upload-routes.ts';

export const fileTags = {
  Files: 'Input and output files of batches and fine-tuning jobs.',
  Uploads: 'Files in parts, so that you can resume large uploads.',
};

type Deps = UploadFileDeps & UploadDeps & FileContentDeps & RelayDeps;

const read = { method: 'GET', tag: 'Files', scope: 'files.read' } as const;
const params = z.object({ file_id: z.string() });

export const fileRoutes = (deps: Deps): Route[] => [
  uploadFile(deps),
  ...uploadRoutes(deps),
  listFiles(deps),
  orAtProvider(deps, retrieveFile(deps)),
  orAtProvider(deps, retrieveFileContent(deps)),
  orAtProvider(deps, deleteFile(deps)),
];

const listFiles = ({ files }: { files: Files }): Route => ({
  ...read,
  path: '/v1/files',
  operationId: 'listFiles',
  summary: 'List files',
  description:
    'Newest first unless `order` is `asc`. You can filter by `purpose`. The list includes the output and error files ' +
    'of batches. `after` takes the ID of the last file on the previous page.',
  responses: { 200: { description: 'A page of files.', schema: FileList } },
  ...withInput({ query: FileListQuery }, async ({ query }, request, response) => {
    const { workspaceId } = getCaller(request);
    const { purpose = null, order, after = null, limit } = query;
    const page = await files.list({ workspaceId, purpose, order, after, limit });
    response.json(toListResponse(page.map(toOpenAiFile), query.limit));
  }),
});

const retrieveFile = ({ files }: { files: Files }): Route => ({
  ...read,
  path: '/v1/files/:file_id',
  operationId: 'retrieveFile',
  summary: 'Retrieve a file',
  description: `Returns the name, purpose, size and status of a file, but not its content. ${atProvider}`,
  responses: { 200: { description: 'The file.', schema: FileObject } },
  ...withInput({ params }, async (input, request, response) => {
    response.json(toOpenAiFile(await files.retrieve(getCaller(request).workspaceId, input.params.file_id)));
  }),
});

const retrieveFileContent = (deps: FileContentDeps): Route => ({
  ...read,
  path: '/v1/files/:file_id/content',
  operationId: 'retrieveFileContent',
  summary: 'Download the content of a file',
  description: `Returns the stored bytes. Send \`Range\` to resume an interrupted download. ${atProvider}`,
  errors: { range_not_satisfiable: 'the range starts after the end of the file' },
  responses: {
    200: { description: 'The bytes of the file.', contentType: 'application/octet-stream' },
    206: { description: 'The bytes in `Range`.', contentType: 'application/octet-stream' },
  },
  ...withInput({ params }, async (input, request, response) => {
    await sendFileContent(deps, input.params.file_id, request, response);
  }),
});

const deleteFile = ({ files }: { files: Files }): Route => ({
  method: 'DELETE',
  path: '/v1/files/:file_id',
  operationId: 'deleteFile',
  summary: 'Delete a file',
  description: `Batches that have started keep their input file until they end. Deleting a file twice returns 404. ${atProvider}`,
  tag: 'Files',
  scope: 'files.write',
  errors: { legal_hold: 'the workspace is under legal hold' },
  responses: { 200: { description: 'The file was deleted.', schema: FileDeletion } },
  ...withInput({ params }, async (input, request, response) => {
    const { file_id: id } = input.params;
    await files.remove(getCaller(request).workspaceId, id, toEventMetadata(request));
    response.json({ id, object: 'file', deleted: true });
  }),
});
