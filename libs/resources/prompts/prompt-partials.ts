import { sql } from 'kysely';
import { z } from 'zod';
import { partialFields, PartialObject, partialUpdateFields } from '#libs/contracts/configs/prompts.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { compileTemplate } from '#libs/prompts/compile-template.ts';
import { refuseUnstorable } from '#libs/credentials/configs/config-document.ts';
import { collectionFilter, collectionLock, collectionOf, keepDefaultCollection } from './collections.ts';
import { defineKind, type CheckContext } from '#libs/resources/define-kind.ts';
import { idOfName } from '#libs/records/find-by-name.ts';
import { promptsLimit, refuseLargeVersion } from './prompt-limits.ts';
import { versionId } from '#libs/records/traits/versions.ts';
import type { ResourceRow } from '#libs/records/resource-row.ts';
import { templateErrors } from '#libs/resources/kind-texts.ts';

export type PartialData = {
  name: string;
  collection_id: string;
  status?: 'active' | 'archived';
  string: string;
  version_description: string | null;
  /** The version in use. */
  prompt_partial_version: number;
};

export type LivePartial = {
  readonly id: string;
  readonly workspaceId: string;
  readonly slug: string;
  readonly version: number;
  readonly lastVersion: number;
  readonly data: Pick<PartialData, 'string'>;
};

type PartialInput = Partial<z.output<z.ZodObject<typeof partialFields>>> & {
  description?: string | null;
  status?: 'active' | 'archived';
};

/** Texts that prompts include with `{{>slug}}`. */
export const partialKind = defineKind<typeof partialFields, PartialData, LivePartial>({
  noun: 'prompt_partial',
  idPrefix: 'partial_',
  area: 'prompts',
  texts: {
    create: {
      description: 'A text that prompts include with `{{>slug}}`.',
      example: { name: 'Closing', string: 'Kind regards, {{team}}' },
      errors: templateErrors,
    },
    update: {
      description: 'The new version is used after you publish it with `makeDefault`.',
      example: { string: 'Yours, {{team}}' },
      errors: templateErrors,
    },
    delete: { description: 'Calls of prompts that include the partial fail from then on.' },
    publish: { description: 'Prompts include this version from then on.', example: { version: 2 } },
  },
  path: '/v1/prompts/partials',
  names: { one: 'partial', many: 'partials', tag: 'Prompts', object: 'partial' },
  fields: partialFields,
  applied: { refersTo: { collection: 'collection_id' } },
  changes: { fields: partialUpdateFields },
  slugs: {},
  creation: { limit: promptsLimit },
  portkey: { listsBare: true },
  filters: { collection_id: collectionFilter },
  locks: (workspaceId) => [collectionLock(workspaceId)],
  prepare: keepDefaultCollection,
  versions: {
    fields: ['string', 'version_description'],
    publish: 'on_request',
    listsBare: true,
    view: (row, { number, data, created_at }, place) => ({
      ...viewOf({ ...row, data: { ...row.data, ...data, prompt_partial_version: number } }),
      ...(place === 'list' ? { id: versionId(row.id, number) } : {}),
      prompt_partial_id: row.id,
      description: data.version_description ?? null,
      prompt_version_status: number === row.data.prompt_partial_version ? 'active' : 'archived',
      created_at: created_at.toISOString(),
    }),
  },

  async check(input: PartialInput, context) {
    const { row } = context;
    const { name, string, collection_id: collection, status } = input;
    const description = input.version_description ?? input.description;
    if (string !== undefined) {
      refuseUnstorable(string, 'string');
      refuseLargeVersion({ string, description }, context);
      const { partials } = compileTemplate(string, 'string');
      await refuseUnknownPartials(
        partials.filter((partial) => partial !== row?.slug),
        context,
      );
    }
    const isMoved = row === null || collection !== undefined;
    return {
      data: {
        ...(name === undefined ? {} : { name }),
        ...(status === undefined ? {} : { status }),
        ...(isMoved ? { collection_id: await collectionOf(context, collection) } : {}),
        ...(string === undefined ? {} : { string, version_description: description ?? null }),
        ...(string === undefined && description !== undefined ? { version_description: description } : {}),
      },
    };
  },

  view: viewOf,
  viewSchema: PartialObject,

  cached: {
    toEntry: ({ id, workspace_id: workspaceId, slug, last_version, data }) => ({
      id,
      workspaceId,
      slug: slug ?? id,
      version: data.prompt_partial_version,
      lastVersion: last_version ?? 1,
      data: { string: data.string },
    }),
  },
});

function viewOf({ id, data, last_version, deleted_at }: ResourceRow<PartialData>): object {
  const version = data.prompt_partial_version;
  return {
    name: data.name,
    collection_id: data.collection_id,
    string: data.string,
    version,
    version_id: versionId(id, version),
    version_description: data.version_description,
    prompt_partial_version_id: versionId(id, version),
    last_version: last_version ?? version,
    status: deleted_at ? 'deleted' : (data.status ?? 'active'),
  };
}

/** Throws invalid_request for a template that names partials that do not exist in this workspace. */
export async function refuseUnknownPartials(
  names: readonly string[],
  { unit, workspaceId }: Pick<CheckContext<never>, 'unit' | 'workspaceId'>,
): Promise<void> {
  if (names.length === 0) return;
  const isActive = sql`workspace_id = ${workspaceId} and coalesce(data ->> 'status', 'active') = 'active'`;
  // `slug@3` names a version, which is looked up when the template is rendered.
  const id = idOfName('prompt_partial', sql`split_part(wanted.name, '@', 1)`, isActive);
  const { rows } = await sql<{ name: string }>`
    select wanted.name from unnest(${names}::text[]) with ordinality as wanted (name, place)
    where ${id} is null order by place limit 1`.execute(unit.tx);
  const [unknown] = rows;
  if (unknown === undefined) return;
  const message = `Invalid 'string': it includes the partial '${unknown.name.slice(0, 100)}', which does not exist in this workspace.`;
  throw new GatewayError('invalid_request', 'prompt_partial_not_found', message, { param: 'string' });
}
