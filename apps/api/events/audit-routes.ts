import type { Request, Response } from 'express';
import type { Kysely } from 'kysely';
import { z } from 'zod';
import { queryInteger } from '#libs/contracts/lists.ts';
import { text } from '#libs/contracts/scalars.ts';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import type { Database } from '#libs/database/schema.ts';
import { asSystem } from '#libs/database/workspace-binding.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { requireOrganisation } from '#libs/http/rights.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { AuditKeys } from '#libs/seal/audit-keys.ts';
import { checkpointFile } from '#libs/seal/seal-log.ts';
import { readNewestCheckpoint } from '#libs/seal/seal-state.ts';
import { verifierText } from '#libs/seal/signed-note.ts';
import { isTilePath } from '#libs/seal/tiles.ts';

export type AuditDeps = {
  db: Kysely<Database>;
  /** The folder of the trees, the keys that sign, and the name of the log before its first checkpoint. */
  audit: { folder: BlobFolder; keys: AuditKeys; name: () => Promise<string> };
};

const TreeQuery = z.object({
  tree: queryInteger({ min: 0, max: 999_999_999, fallback: 0 }).describe(
    'The number of an earlier tree, from 1. Default: the tree that grows. A tree ends when the log lost events, such as after a restore.',
  ),
});

const plainText = 'text/plain; charset=utf-8';
const what = 'read the seal of the whole log';
const common = {
  method: 'GET',
  tag: 'Audit',
  scope: 'audit.read',
  errors: { organisation_key_required: 'the seal covers all workspaces: use an organisation key' },
} as const;

/** The seal of the event log, in the format of https://c2sp.org/tlog-tiles. */
export const auditRoutes = ({ db, audit }: AuditDeps): Route[] => [
  {
    ...common,
    path: '/v1/audit/checkpoint',
    operationId: 'getAuditCheckpoint',
    summary: 'The newest signed checkpoint of the event log',
    description:
      'A checkpoint as https://c2sp.org/tlog-checkpoint defines it: the name of the log, its size and its root.',
    responses: { 200: { description: 'A signed note.', contentType: plainText } },
    ...withInput({ query: TreeQuery }, async ({ query }, request, response) => {
      requireOrganisation(getCaller(request), what);
      const newest = await asSystem(() => readNewestCheckpoint(db));
      const isNewest = query.tree === 0 || query.tree === newest?.tree;
      const stored = isNewest ? newest?.checkpoint : await audit.folder.read(`${query.tree}/${checkpointFile}`);
      if (stored === undefined || stored === null) throw notSealed('checkpoint');
      send(response, plainText, Buffer.from(stored), 'no-store');
    }),
  },
  ...[1, 2, 3, 4].map((parts) => tileRoute({ db, audit }, parts)),
  {
    ...common,
    path: '/v1/audit/key',
    operationId: 'getAuditKey',
    summary: 'The public keys that verify checkpoints',
    description:
      'One verifier key of https://c2sp.org/signed-note per line. There are two while a key is being replaced. Store the ' +
      'key when you begin to watch the log: a key that you get together with a checkpoint proves nothing.',
    responses: { 200: { description: 'Verifier keys.', contentType: plainText } },
    handler: async (request: Request, response: Response) => {
      requireOrganisation(getCaller(request), what);
      const name = (await asSystem(() => readNewestCheckpoint(db)))?.name ?? (await audit.name());
      const lines = audit.keys(name).map((signer) => `${verifierText(signer)}\n`);
      send(response, plainText, Buffer.from(lines.join('')), 'no-store');
    },
  },
];

/** The index of a tile has one part for each three digits, and a partial tile one more for its width. */
function tileRoute({ db, audit }: AuditDeps, parts: number): Route {
  const names = ['level', ...Array.from({ length: parts }, (_part, index) => `part${index + 1}`)];
  const params = z.object(Object.fromEntries(names.map((name) => [name, text({ min: 1, max: 10 })])));
  return {
    ...common,
    path: `/v1/audit/tile/${names.map((name) => `:${name}`).join('/')}`,
    operationId: parts === 1 ? 'getAuditTile' : `getAuditTileIn${parts}`,
    summary: `A tile of the sealed event log${parts === 1 ? '' : `, with ${parts} parts in its path`}`,
    description:
      'A tile of hashes, or a bundle of entries. Paths and contents are those of https://c2sp.org/tlog-tiles, such as ' +
      '`tile/0/000` and `tile/entries/000.p/17`. A partial tile is removed once the full one exists.',
    responses: { 200: { description: 'The bytes of the tile.', contentType: 'application/octet-stream' } },
    ...withInput({ params, query: TreeQuery }, async (input, request, response) => {
      requireOrganisation(getCaller(request), what);
      const path = `tile/${names.map((name) => input.params[name]).join('/')}`;
      const tree = input.query.tree || (await asSystem(() => readNewestCheckpoint(db)))?.tree;
      const bytes = tree !== undefined && isTilePath(path) ? await audit.folder.read(`${tree}/${path}`) : null;
      if (bytes === null) throw notSealed(path);
      // Without the number of a tree, the same address later means a tile of another one.
      const caching = input.query.tree === 0 ? 'no-store' : 'private, max-age=31536000, immutable';
      send(response, 'application/octet-stream', bytes, caching);
    }),
  };
}

const notSealed = (path: string): GatewayError =>
  new GatewayError('not_found', 'not_sealed', `The sealed log has no '${path.slice(0, 100)}'.`);

function send(response: Response, contentType: string, bytes: Buffer, caching: string): void {
  response.setHeader('content-type', contentType);
  response.setHeader('cache-control', caching);
  response.end(bytes);
}
