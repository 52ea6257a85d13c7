import type { AnyResource } from './define-resource.ts';
import { findBaseModel } from './kit.ts';
import type { Authors, ResourceRow } from './resource-row.ts';

/** The public form of a record. `nowMs` is the database's clock. */
export const viewOf = (kind: AnyResource, row: ResourceRow<object>, nowMs: number): object => ({
  ...findBaseModel(kind, row),
  ...kind.view(row, nowMs),
});

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
