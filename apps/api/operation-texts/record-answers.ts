import type { AnyResource } from '#libs/records/define-resource.ts';
import { objectOf } from '#libs/records/resource-view.ts';
import { operationName } from '#libs/records/resource-routes.ts';
import { recordOf } from './example-records.ts';

/** What the answer to a creation has beyond the record: what is shown once. */
const shownOnce: Readonly<Record<string, object>> = {
  api_key: { key: 'slk_…' },
  invite: { invite_link: 'https://sluice.example.com/v1/admin/users/invites/accept#token=inv_…' },
};

const ofCollection = {
  collection_details: {
    child_collections_count: 0,
    prompts_count: 0,
    child_collections_last_updated_at: null,
    prompts_last_updated_at: null,
  },
  child_collections: [],
};

/** What answers have beyond the record where it is not made, by the kind. */
const beyond: Readonly<Record<string, { alone?: object; inLists?: object; changed?: object }>> = {
  collection: { alone: ofCollection, inLists: ofCollection, changed: ofCollection },
  prompt: { alone: { label_id: null }, inLists: { label_id: null } },
  workspace: { alone: { users: [] } },
};

/** The record after a change with this body, as far as its answer shows the members of it. */
function changedBy(record: object, body: object | undefined): Record<string, unknown> {
  const members = Object.entries(body ?? {}).filter(([name]) => Object.hasOwn(record, name));
  const version =
    'version_id' in record ? { version: 2, version_id: String(record.version_id).replace('@1', '@2') } : {};
  const changer = 'updated_by' in record ? { updated_by: 'key_abc' } : {};
  const { usage_limits: limits, actions, ...others } = Object.fromEntries(members) as Record<string, unknown>;
  return {
    ...record,
    ...version,
    ...changer,
    ...others,
    ...(actions === undefined
      ? {}
      : { actions: { ...(record as { actions?: object }).actions, ...(actions as object) } }),
    ...(Array.isArray(limits) ? { usage_limits: limits.map(withReset) } : {}),
  };
}

/** Examples of budgets are monthly. */
const withReset = (limit: object): object => ({ ...limit, next_usage_reset_at: '2026-12-01T00:00:00.000Z' });

/** Answers of the operations that every kind of record has. `bodyOf` is the example of an operation's body. */
export function recordAnswers(
  kind: AnyResource,
  bodyOf: (operationId: string) => object | undefined,
): Record<string, object> {
  const record = recordOf(kind.noun);
  if (record === undefined) return {};
  const [one, many] = [operationName(kind.names.one), operationName(kind.names.many)];
  const { answerData } = kind;
  const shown = (data: object): object =>
    answerData ? { ...data, success: true, data: answerData(data as Record<string, unknown>) } : data;
  const { id, slug } = record as { id: string; slug?: string };
  const { alone, inLists, changed } = beyond[kind.noun] ?? {};
  const pageOf = (item: { id: string }): object => ({
    object: 'list',
    data: [item],
    first_id: item.id,
    last_id: item.id,
    has_more: false,
    total: 1,
  });
  const listed = { ...record, ...inLists, id };
  const version = {
    id: `${id}@1`,
    object: `${kind.noun}.version`,
    [`${kind.noun}_id`]: id,
    slug,
    version: 1,
    ...Object.fromEntries(Object.entries(record).filter(([name]) => kind.versioned?.fields.includes(name))),
    ...Object.fromEntries(
      Object.keys(kind.versioned?.shownSchema ?? {}).map((name) => [
        name,
        (record as Record<string, unknown>)[name] ?? null,
      ]),
    ),
    ...(kind.versioned?.shownSchema ? { type: kind.noun, status: 'archived', updated_by: 'key_abc' } : {}),
    created_at: (record as { created_at?: string }).created_at,
  };
  return {
    [`create${one}`]: { ...shown(record), ...shownOnce[kind.noun] },
    [`retrieve${one}`]: { ...shown(record), ...alone },
    // Those whose versions have a form of their own are in version-answers.ts.
    ...(kind.versioned?.view
      ? {}
      : { [`update${one}`]: { ...shown(changedBy(record, bodyOf(`update${one}`))), ...changed } }),
    ...(kind.versioned && !kind.versioned.view
      ? { [`list${one}Versions`]: pageOf(version), [`retrieve${one}Version`]: version }
      : {}),
    [`delete${one}`]: {
      id,
      object: objectOf(kind),
      ...(kind.slug ? { slug } : {}),
      deleted: true,
      ...(kind.removal?.answer ? { service_keys: [], has_more_service_keys: false } : {}),
    },
    [`list${many}`]: kind.listsBare ? [listed] : { ...pageOf(listed), ...(answerData ? { success: true } : {}) },
  };
}
