import { z } from 'zod';
import type { AnyResource } from './define-resource.ts';
import { objectOf } from './kit.ts';
import type { Authors, ResourceRow } from './resource-row.ts';
import { versionMember } from './traits/versions.ts';

/** The names of a kind's fields that may be shown. */
const shownFields = ({ fields, secrets = [] }: AnyResource): string[] =>
  Object.keys(fields).filter((name) => name !== 'slug' && !secrets.includes(name));

/** The times of a record as answers have them: ISO 8601 (REC-1). */
export const timesOf = ({ created_at, updated_at }: Pick<ResourceRow, 'created_at' | 'updated_at'>) => ({
  created_at: created_at.toISOString(),
  last_updated_at: updated_at.toISOString(),
});

/** Who owns a record and changed it last, as answers have them. */
export const authorsOf = ({ data }: { data: object }) => {
  const { created_by: owner, updated_by: changer } = data as Authors;
  return { owner_id: owner ?? null, updated_by: changer ?? null };
};

const timeSchemas = { created_at: z.iso.datetime(), last_updated_at: z.iso.datetime() };

/** The public form of a record. `nowMs` is the database's clock. */
export function viewOf(kind: AnyResource, row: ResourceRow<object>, nowMs: number): object {
  if (kind.view) return kind.view(row, nowMs);
  const data = row.data as Record<string, unknown>;
  const fields = shownFields(kind).map((name) => [name, data[name] ?? null]);
  return {
    id: row.id,
    object: objectOf(kind),
    ...(kind.slugs ? { slug: row.slug } : {}),
    ...(kind.versions ? { version: data[versionMember(kind)], last_version: row.last_version } : {}),
    ...(Object.fromEntries(fields) as object),
    status: row.deleted_at ? 'deleted' : 'active',
    ...timesOf(row),
  };
}

/** The schema of `viewOf`, for the documentation. */
export function viewSchemaOf(kind: AnyResource): z.ZodObject {
  if (kind.viewSchema) return kind.viewSchema;
  return z.object({
    id: z.string(),
    object: z.literal(objectOf(kind)),
    ...(kind.slugs ? { slug: z.string() } : {}),
    ...(kind.versions ? { version: z.int(), last_version: z.int() } : {}),
    ...anyOf(shownFields(kind)),
    status: z.enum(['active', 'deleted']),
    ...timeSchemas,
  });
}

// Stored fields may be another form of what the request has, so the document leaves their types open.
const anyOf = (names: readonly string[]): z.ZodRawShape => Object.fromEntries(names.map((name) => [name, z.unknown()]));
