import type { AnyResource } from './define-resource.ts';
import { commonMembers, timeMembers } from './kit.ts';
import type { Authors, ResourceRow } from './resource-row.ts';

/** The public form of a record. `nowMs` is the database's clock. */
export const viewOf = (kind: AnyResource, row: ResourceRow<object>, nowMs: number): object => ({
  ...commonMembers(kind, row),
  ...kind.view(row, nowMs),
  ...timeMembers(kind, row),
});

/** The owner of a record and its last editor, as shown in answers. */
export const authorsOf = ({ data }: { data: object }) => {
  const { created_by: owner, updated_by: changer } = data as Authors;
  return { owner_id: owner ?? null, updated_by: changer ?? null };
};
