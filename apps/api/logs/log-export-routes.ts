import type { Request, Response } from 'express';
import { sql, type Kysely } from 'kysely';
import { z } from 'zod';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import { logExportFields } from '#libs/contracts/logs/log-exports.ts';
import type { Database } from '#libs/database/schema.ts';
import { fingerprintBody } from '#libs/event-log/idempotency.ts';
import { getJsonBody } from '#libs/http/bodies/json-body.ts';
import { requireScope } from '#libs/http/rights.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { sendPieces } from '#libs/http/answers/send-pieces.ts';
import { getCallIdentity, toEventMetadata } from '#libs/identity/call-identity.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { countTransferred } from '#libs/kernel/heap-growth.ts';
import type { Turns } from '#libs/kernel/sharing/turns.ts';
import type { JobQueue } from '#libs/queue/job-queue.ts';
import { chosenWorkspace, workspaceOfRecord } from '#libs/records/choose-workspace.ts';
import type { RecordName } from '#libs/records/kit.ts';
import type { KindDeps } from '#libs/resources/define-kind.ts';
import { exportFormats } from '#libs/request-log/read/export-formats.ts';
import { countForExport, logExportQueue } from '#libs/request-log/read/run-log-export.ts';
import { logExportKind, type LogExportData } from '#libs/resources/log-exports.ts';
import { createResourceStore } from '#libs/records/resource-store.ts';
import { viewOf } from '#libs/records/resource-view.ts';
import type { DownloadLinks } from '#libs/secrets/download-links.ts';
import { repeatErrors, workspaceErrors } from '../document-texts.ts';
import type { CountRead } from '../organisation/guard-keys.ts';

const exportErrors = { log_export_not_found: 'no export with this ID is visible to the key' };
const stateErrors = { ...exportErrors, log_export_wrong_state: 'the status of the export does not allow this' };
const expiredText = 'the file was deleted after its retention period';

type Deps = {
  db: Kysely<Database>;
  resources: KindDeps;
  queue: Pick<JobQueue, 'enqueue'>;
  blobs: BlobStore;
  downloadLinks: DownloadLinks;
  clock: Clock;
  baseUrl: () => string;
  stallTimeoutMs: number;
  exports: { runningMax: number; linkTtlMs: number };
  countRead: CountRead;
  /** Counting records is a search. */
  searches: Turns;
};

/** Beyond this number, matching records are not counted for the answer. */
const countMax = 1_000_000;

const place = { workspace_id: z.string().max(200).optional() };
const Params = z.object({ id: z.string() });
const Message = z.object({ object: z.literal('export'), message: z.string(), id: z.string(), status: z.string() });

const startText = {
  summary: 'Start an export',
  description:
    'A worker writes the file with the records up to now, and resumes after a crash. Repeating the request has no effect.',
  errors: { ...stateErrors, too_many_log_exports: 'the limit of exports in progress is reached' },
};
const cancelText = {
  summary: 'Cancel an export and delete its unfinished file',
  description: 'Repeating the request has no effect. An export that has ended cannot be cancelled.',
  errors: stateErrors,
};

/** Creating, changing, starting, cancelling and downloading exports; libs/resources has the routes that every kind has. */
export function logExportRoutes(deps: Deps): Route[] {
  const kit = createExportKit(deps);
  return [createRoute(kit), updateRoute(kit), startRoute(kit), cancelRoute(kit), downloadRoute(kit), contentRoute(kit)];
}

const about = { tag: 'Log exports', scope: 'logs.write' } as const;
const schema = logExportKind.viewSchema;

type Kit = ReturnType<typeof createExportKit>;

/** What the routes of exports share. */
function createExportKit(deps: Deps) {
  const { db } = deps;
  const store = createResourceStore<LogExportData>(logExportKind, deps.resources);

  const recordOf = async (request: Request, wanted: string | undefined): Promise<RecordName> => {
    const caller = getCaller(request);
    const name = String(request.params['id']);
    const workspace = wanted ?? (await workspaceOfRecord(db, caller, logExportKind, name));
    return { workspaceId: await chosenWorkspace(db, caller, workspace), name };
  };
  /**
   * Throws not_found for a workspace that the caller cannot choose, and invalid_request for another workspace than the
   * export's.
   */
  const requireSameWorkspace = async (
    request: Request,
    workspaceId: string,
    slug: string | undefined,
  ): Promise<void> => {
    if (slug === undefined || (await chosenWorkspace(db, getCaller(request), slug)) === workspaceId) return;
    const message =
      "Invalid 'filters.workspace_slug': the export belongs to another workspace. Leave it out, or create the export there.";
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'filters.workspace_slug' });
  };
  /** The filters are stored as they were sent, and read again when the export runs. */
  const givenFilters = (request: Request): Record<string, unknown> =>
    (getJsonBody(request).value as { filters: Record<string, unknown> }).filters;

  const count = (workspaceId: string, filters: Record<string, unknown>): Promise<number | null> =>
    deps.searches.run(workspaceId, () => countForExport(db, workspaceId, filters, countMax));

  const findParts = (id: string) =>
    db.selectFrom('log_export_part').selectAll().where('export_id', '=', id).orderBy('part').execute();

  return { ...deps, store, recordOf, requireSameWorkspace, givenFilters, count, findParts };
}

const createRoute = ({ store, requireSameWorkspace, givenFilters, count, db }: Kit): Route => ({
  method: 'POST',
  path: '/v1/logs/exports',
  operationId: 'createLogExport',
  summary: 'Create an export of the request log as a draft',
  description:
    'Start it with a separate request. `total` is the number of records that match now. The columns `request` and ' +
    '`response` require the scope `bodies.read`, both here and for the download.',
  example: {
    filters: { status_code: '429,500' },
    requested_data: ['id', 'created_at', 'ai_model', 'cost'],
    format: 'csv',
  },
  errors: {
    too_many_log_exports: 'the workspace has reached its limit of exports',
    ...workspaceErrors,
    idempotency_key_reused: repeatErrors.idempotency_key_reused,
  },
  ...about,
  responses: { 200: { description: 'The export.', schema } },
  ...withInput({ body: z.strictObject({ ...logExportFields, ...place }) }, async ({ body }, request, response) => {
    const { workspace_id: wanted, ...input } = body;
    if (hasBodies(input)) requireScope(getCaller(request), 'bodies.read');
    const filters = givenFilters(request);
    const slug = input.filters.workspace_slug;
    const workspaceId = await chosenWorkspace(db, getCaller(request), wanted ?? slug);
    await requireSameWorkspace(request, workspaceId, slug);
    const total = await count(workspaceId, filters);
    const call = { ...getCallIdentity(request), fingerprint: fingerprintBody(getJsonBody(request).bytes) };
    const actor = { caller: getCaller(request), metadata: toEventMetadata(request) };
    const { record, replayed } = await store.create(call, workspaceId, actor, { ...input, filters, total });
    if (replayed) response.setHeader('idempotent-replayed', 'true');
    response.json(record);
  }),
});

const fields = { ...z.object(logExportFields).partial().shape, export_id: z.string().optional(), ...place };

const updateRoute = ({ store, recordOf, requireSameWorkspace, givenFilters, count, clock }: Kit): Route => ({
  method: 'PUT',
  path: '/v1/logs/exports/:id',
  operationId: 'updateLogExport',
  summary: 'Change a draft',
  description:
    'Changes the filters and columns of an export that has not been started. Members that you leave out stay ' +
    'unchanged.',
  example: { filters: { status_code: '500,503' }, requested_data: ['id', 'created_at', 'response_status_code'] },
  errors: { ...exportErrors, log_export_not_draft: 'the export has been started' },
  ...about,
  responses: { 200: { description: 'The export.', schema } },
  ...withInput({ params: Params, body: z.strictObject(fields) }, async ({ body }, request, response) => {
    const { workspace_id: wanted, export_id: repeated = request.params['id'], ...input } = body;
    if (repeated !== request.params['id']) {
      const message = "Invalid 'export_id': it differs from the one in the path. Leave it out, or send the same value.";
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'export_id' });
    }
    if (hasBodies(input)) requireScope(getCaller(request), 'bodies.read');
    const record = await recordOf(request, wanted);
    const { workspace_id: workspaceId } = await store.get(record);
    await requireSameWorkspace(request, workspaceId, input.filters?.workspace_slug);
    const filters = input.filters && givenFilters(request);
    const counted = filters && { filters, total: await count(workspaceId, filters) };
    const actor = { caller: getCaller(request), metadata: toEventMetadata(request) };
    const row = await store.update(record, actor, { ...input, ...counted });
    response.json(viewOf(logExportKind, row, clock.now()));
  }),
});

const actRoute = (
  { recordOf }: Kit,
  verb: 'start' | 'cancel',
  text: Pick<Route, 'summary' | 'description' | 'errors'>,
  run: (record: RecordName, request: Request) => Promise<string>,
) =>
  ({
    method: 'POST',
    path: `/v1/logs/exports/:id/${verb}`,
    operationId: `${verb}LogExport`,
    ...text,
    ...about,
    responses: { 200: { description: 'It was done.', schema: Message } },
    ...withInput(
      { params: Params, query: z.object(place) },
      async ({ query }, request: Request, response: Response) => {
        const message = await run(await recordOf(request, query.workspace_id), request);
        const status = verb === 'start' ? 'in_progress' : 'stopped';
        response.json({ object: 'export', message, id: request.params['id'], status });
      },
    ),
  }) satisfies Route;

const startRoute = (kit: Kit): Route =>
  actRoute(kit, 'start', startText, async (record, request) => {
    const { store, exports, queue } = kit;
    await store.change(record, toEventMetadata(request), async (unit, row) => {
      if (row.data.status === 'in_progress') return [];
      if (row.data.status !== undefined) throw wrongState(row.id, row.data.status, 'started');
      const { rows } = await sql<{ count: number }>`
        select count(*)::int as count from resource
        where kind = 'log_export' and workspace_id = ${row.workspace_id} and deleted_at is null
          and data ->> 'status' = 'in_progress'`.execute(unit.tx);
      const count = rows[0]?.count ?? 0;
      if (count >= exports.runningMax) {
        const message = `${count} exports of this workspace are in progress, the maximum (SLUICE_EXPORTS_RUNNING_MAX). Start this export when one of them has ended.`;
        throw new GatewayError('quota_exceeded', 'too_many_log_exports', message);
      }
      await queue.enqueue(unit.tx, logExportQueue, { export_id: row.id });
      return [{ type: 'log_export.started', data: { status: 'in_progress', until: unit.now.toISOString() } }];
    });
    return 'Export started';
  });

const cancelRoute = (kit: Kit): Route =>
  actRoute(kit, 'cancel', cancelText, async (record, request) => {
    await kit.store.change(record, toEventMetadata(request), (_unit, row) => {
      if (row.data.status === 'stopped') return [];
      if (row.data.status === 'success' || row.data.status === 'failed')
        throw wrongState(row.id, row.data.status, 'cancelled');
      return [{ type: 'log_export.stopped', data: { status: 'stopped' } }];
    });
    return 'Export cancelled';
  });

const downloadRoute = ({
  store,
  recordOf,
  findParts,
  countRead,
  clock,
  exports,
  baseUrl,
  downloadLinks,
}: Kit): Route => ({
  method: 'GET',
  path: '/v1/logs/exports/:id/download',
  operationId: 'downloadLogExport',
  summary: 'Get a temporary link to the file of an export',
  description:
    'The link works without a key and gives access to anyone who has it until it expires (`SLUICE_EXPORT_LINK_TTL`, ' +
    '15 minutes by default).',
  errors: { ...stateErrors, log_export_expired: expiredText },
  tag: 'Log exports',
  scope: 'logs.read',
  optionalScopes: ['bodies.read'],
  responses: {
    200: { description: 'The link.', schema: z.object({ signed_url: z.url(), expires_at: z.iso.datetime() }) },
  },
  ...withInput({ params: Params, query: z.object(place) }, async ({ query }, request, response) => {
    const { id, data } = await store.get(await recordOf(request, query.workspace_id));
    if (data.status !== 'success') throw wrongState(id, data.status ?? 'a draft', 'downloaded');
    if ((await findParts(id)).length === 0) throw expired(id);
    if (hasBodies(data)) requireScope(getCaller(request), 'bodies.read');
    countRead(request, 'log_export', id);
    const expiresAtMs = clock.now() + exports.linkTtlMs;
    const url = new URL(`${baseUrl()}/v1/logs/exports/${id}/content`);
    url.searchParams.set('token', downloadLinks.sign(id, expiresAtMs));
    response.setHeader('cache-control', 'no-store');
    response.json({ signed_url: url.href, expires_at: new Date(expiresAtMs).toISOString() });
  }),
});

const contentRoute = ({ store, findParts, clock, downloadLinks, blobs: blobStore, stallTimeoutMs }: Kit): Route => ({
  method: 'GET',
  path: '/v1/logs/exports/:id/content',
  operationId: 'readLogExport',
  summary: 'Download the file of an export by its link',
  description: 'The target of the link from the download operation. A signature in the query replaces the key.',
  errors: { invalid_link: 'the link is invalid or has expired', log_export_expired: expiredText },
  tag: 'Log exports',
  scope: 'public',
  responses: { 200: { description: 'The file.', contentType: 'application/octet-stream' } },
  ...withInput(
    { params: Params, query: z.object({ token: z.string().max(200).default('') }) },
    async (input, request, response) => {
      const { id } = input.params;
      if (!downloadLinks.accepts(id, input.query.token, clock.now())) {
        const message = 'This link is invalid or has expired. GET /v1/logs/exports/{id}/download returns a new link.';
        throw new GatewayError('forbidden', 'invalid_link', message, { param: 'token' });
      }
      const { data } = await store.get({ workspaceId: null, name: id });
      const parts = await findParts(id);
      if (data.status !== 'success' || parts.length === 0) throw expired(id);
      const { format = 'ndjson' } = data;
      response.setHeader('content-type', exportFormats[format].contentType);
      response.setHeader('content-length', String(parts.reduce((sum, part) => sum + part.size_bytes, 0)));
      response.setHeader('content-disposition', `attachment; filename="${id}.${format}"`);
      response.setHeader('x-content-type-options', 'nosniff');
      response.setHeader('cache-control', 'private, no-store');
      try {
        const blobs = request.method === 'HEAD' ? [] : parts.map(({ blob }) => blob);
        await sendPieces(response, piecesOf(blobStore, blobs), stallTimeoutMs);
      } catch (error) {
        if (!response.headersSent) throw error;
        if (!response.destroyed) response.destroy();
      }
    },
  ),
});

/** Whether the file of an export has recorded prompts or answers. */
const hasBodies = ({ requested_data: columns = [] }: { requested_data?: readonly string[] | undefined }): boolean =>
  columns.includes('request') || columns.includes('response');

async function* piecesOf(blobs: BlobStore, names: readonly string[]): AsyncGenerator<Buffer> {
  for (const name of names) {
    for await (const piece of await blobs.read(name)) {
      countTransferred((piece as Buffer).length);
      yield piece as Buffer;
    }
  }
}

const wrongState = (id: string, status: string, done: string): GatewayError =>
  new GatewayError('conflict', 'log_export_wrong_state', `The export '${id}' is ${status} and cannot be ${done}.`);

const expired = (id: string): GatewayError =>
  new GatewayError(
    'not_found',
    'log_export_expired',
    `The file of the export '${id}' was deleted. Create another export.`,
  );
