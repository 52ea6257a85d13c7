import { sql, type Kysely } from 'kysely';
import { z } from 'zod';
import { LogDetails } from '#libs/contracts/logs/logs.ts';
import type { Database } from '#libs/database/schema.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { hasScope } from '#libs/http/rights.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { namesOfKeys } from '#libs/resources/api-keys/key-names.ts';
import type { ReadLineBodies } from '../batches/line-routes.ts';
import type { CountRead } from '../organisation/guard-keys.ts';
import type { ReadBodies } from '#libs/request-log/bodies/recorded-bodies.ts';
import { toLogId } from '#libs/request-log/row/log-id.ts';
import { findLog, type LogListRow } from '#libs/request-log/read/read-log.ts';
import { toLogDetails } from '#libs/request-log/read/to-log-details.ts';

const Params = z.object({ log_id: z.string() });

type Deps = {
  db: Kysely<Database>;
  countRead: CountRead;
  /** Reads the bodies that the row of a call names, for one request. */
  bodiesReader: () => ReadBodies;
  readLineBodies: ReadLineBodies;
  baseUrl: () => string;
};

/**
 * GET /v1/logs/{log_id}: one record of the request log. Its recorded bodies are only for callers with `bodies.read`, and events
 * count the reads. The bodies of a batch line are in the files of the batch, so every reader of the batch can see them.
 * Errors: not_found.
 */
export const retrieveLog = (deps: Deps): Route => ({
  method: 'GET',
  path: '/v1/logs/:log_id',
  operationId: 'retrieveLog',
  summary: 'Retrieve a record of the request log',
  description:
    'Includes the `steps` of the call. Recorded bodies require the scope `bodies.read` (`batches.read` for batch ' +
    'lines) and are null without it. Events count the reads of recorded bodies.',
  tag: 'Logs',
  scope: 'logs.read',
  optionalScopes: ['bodies.read'],
  responses: { 200: { description: 'The record.', schema: LogDetails } },
  ...withInput({ params: Params }, async ({ params }, request, response) => {
    const caller = getCaller(request);
    const row = await findLog(deps.db, caller.workspaceId, params.log_id);
    if (!row) {
      const message = `No log record found with id '${params.log_id.slice(0, 100)}'.`;
      throw new GatewayError('not_found', null, message, { param: 'log_id' });
    }
    const workspace = await deps.db
      .selectFrom('resource')
      .select('slug')
      .where('id', '=', row.workspace_id)
      .executeTakeFirst();
    const { bodies_blob: reference, workspace_id: workspaceId } = row;
    const recorded = async (name: string) => {
      if (!hasScope(caller, 'bodies.read')) return null;
      return await deps.bodiesReader()(workspaceId, name);
    };
    const bodies =
      reference === null
        ? await deps.readLineBodies(caller, { workspaceId, batchId: row.batch_id, line: row.batch_line })
        : await recorded(reference);
    if (bodies !== null) deps.countRead(request, 'recorded_bodies', toLogId(row.id));
    const names = await namesOfKeys(deps.db, workspaceId, [row.key_id]);
    const keyName = names.get(row.key_id ?? '') ?? null;
    const place = {
      baseUrl: deps.baseUrl(),
      workspaceSlug: workspace?.slug ?? null,
      promptId: await idOfPrompt(deps.db, workspaceId, row),
    };
    response.json(toLogDetails(row, { ...place, bodies, keyName }));
  }),
});

/**
 * The prompt that had the slug when the call was made, because the slug of a deleted one can name another prompt now. The
 * extra minute allows for clocks that differ.
 */
async function idOfPrompt(
  db: Kysely<Database>,
  workspaceId: string,
  { prompt_slug: slug, started_at: startedAt }: Pick<LogListRow, 'prompt_slug' | 'started_at'>,
): Promise<string | null> {
  if (slug === null) return null;
  const { rows } = await sql<{ id: string }>`
    select id from resource where kind = 'prompt' and workspace_id = ${workspaceId} and slug = ${slug}
      and created_at <= ${startedAt}::timestamptz + interval '1 minute' order by created_at desc limit 1`.execute(db);
  return rows[0]?.id ?? null;
}
