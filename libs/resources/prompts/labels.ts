import { sql, type Kysely } from 'kysely';
import { z } from 'zod';
import { LabelObject, labelFields } from '#libs/contracts/configs/prompts.ts';
import type { Database } from '#libs/database/schema.ts';
import { organisationId } from '#libs/http/caller.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { promptsLimit } from './prompt-limits.ts';
import { defineKind } from '#libs/resources/define-kind.ts';
import { idOfName, ofWorkspaceOrShared } from '#libs/records/find-by-name.ts';

const labelExists = { label_exists: 'another label has this name' };

type LabelData = { name: string; description?: string | null; color_code?: string | null };

export type LiveLabel = { readonly id: string; readonly workspaceId: string; readonly name: string };

/** Names for prompt versions, such as `production`. Labels of the organisation are universal. */
export const labelKind = defineKind<typeof labelFields, LabelData, LiveLabel>({
  noun: 'label',
  idPrefix: 'label_',
  area: 'labels',
  texts: {
    create: {
      description:
        'A name for a version of a prompt, as in `support@production`. With `organisation_id`, every workspace sees ' +
        'the label.',
      example: { name: 'production', color_code: '#2e7d32' },
      errors: labelExists,
    },
    update: {
      description: 'Versions keep the label under its new name.',
      example: { color_code: '#1565c0' },
      errors: labelExists,
    },
    delete: { description: 'Removes the label from all versions.' },
  },
  path: '/v1/labels',
  names: { one: 'label', many: 'labels', tag: 'Labels', about: 'Names for versions of prompts.' },
  shared: {},
  fields: labelFields,
  applied: { refersTo: {} },
  creation: { limit: promptsLimit },
  filters: { search: { schema: z.string().max(200), field: 'name', match: 'contains' } },
  locks: (workspaceId) => [`label_names:${workspaceId}`],

  async check(input, context) {
    const { name } = input;
    if (name !== undefined) {
      const found = await findLabel(context.unit.tx, context.workspaceId, name);
      if (found !== null && found !== context.row?.id) {
        const message = `There is already a label '${name}'. Choose another name.`;
        throw new GatewayError('conflict', 'label_exists', message, { param: 'name' });
      }
    }
    return { data: JSON.parse(JSON.stringify(input)) as Partial<LabelData> };
  },

  view: ({ workspace_id, data, deleted_at }) => {
    const isUniversal = workspace_id === organisationId;
    return {
      name: data.name,
      description: data.description ?? null,
      color_code: data.color_code ?? null,
      organisation_id: organisationId,
      workspace_id: isUniversal ? null : workspace_id,
      is_universal: isUniversal,
      status: deleted_at ? 'archived' : 'active',
    };
  },
  viewSchema: LabelObject,

  cached: { toEntry: ({ id, workspace_id: workspaceId, data: { name } }) => ({ id, workspaceId, name }) },
});

/**
 * The ID of the label with this name or ID; a workspace's own label takes precedence over a universal one. Null if there is
 * none.
 */
export async function findLabel(db: Kysely<Database>, workspaceId: string, name: string): Promise<string | null> {
  const id = idOfName('label', name, ofWorkspaceOrShared(workspaceId), { alias: sql`data ->> 'name'` });
  const { rows } = await sql<{ id: string | null }>`select ${id} as id`.execute(db);
  return rows[0]?.id ?? null;
}

/** Returns those of the IDs that belong to active labels. */
export async function activeLabels(db: Kysely<Database>, ids: readonly string[]): Promise<ReadonlySet<string>> {
  if (ids.length === 0) return new Set();
  const { rows } = await sql<{ id: string }>`
    select id from resource where id = any(${ids}::text[]) and kind = 'label' and deleted_at is null`.execute(db);
  return new Set(rows.map(({ id }) => id));
}
