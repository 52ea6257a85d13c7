import type { RecordedEvent } from '#libs/event-log/event.ts';
import { collectUpcasts, type InlineModel, type StreamRow } from '#libs/event-log/inline-model.ts';
import type { AnyResource } from './define-resource.ts';
import type { ResourceEvent, ResourceRow, ResourceVersionRow } from './resource-row.ts';
import { versionedOnRequest, versionId, versionMember } from './traits/versions.ts';

/** The parts of a kind that decide how its events are folded. */
type FoldedKind = Pick<AnyResource, 'noun' | 'versions' | 'removal' | 'cached' | 'history'>;

const removalVerb = ({ removal }: FoldedKind): string => (removal && removal.verb) || 'deleted';

/** A budget of the record has reached its alert threshold. */
const alertVerb = 'alert_reached';

/** The types of all events that a kind can have. */
export function eventTypesOf(kind: AnyResource): string[] {
  const verbs = [
    'created',
    ...(kind.changes === false ? [] : ['updated']),
    ...(kind.removal === false ? [] : [removalVerb(kind)]),
  ];
  if (versionedOnRequest(kind)) verbs.push('version_published');
  if (kind.cached?.limits) verbs.push(alertVerb);
  return [...verbs, ...Object.keys(kind.history?.events ?? {})].map((verb) => `${kind.noun}.${verb}`);
}

/** The current rows of records of these kinds: each row folds one stream. */
export function resourceModel(kinds: readonly FoldedKind[]): InlineModel<ResourceRow, ResourceEvent> {
  const byNoun = new Map(kinds.map((kind) => [kind.noun, kind]));
  return {
    name: 'resource',
    nouns: [...byNoun.keys()],
    hasDeletions: true,
    jsonColumns: ['data'],
    upcasts: collectUpcasts(kinds.map(({ history = {} }) => history)),
    evolve(row, event) {
      const [noun = '', verb = ''] = event.type.split('.');
      const kind = byNoun.get(noun);
      if (kind === undefined) throw new Error(`no kind of record has the event ${event.type}`);
      const next = evolve(kind, row, verb, event);
      return { ...next, lookup: kind.history?.lookup?.(next.data) ?? null };
    },
  };
}

type Head = Omit<ResourceRow, keyof StreamRow | 'lookup'>;

function evolve(kind: FoldedKind, row: Head | undefined, verb: string, event: RecordedEvent<ResourceEvent>): Head {
  const number = event.data[versionMember(kind)];
  if (verb === 'created') {
    const { slug, ...data } = event.data;
    return {
      kind: kind.noun,
      slug: typeof slug === 'string' ? slug : null,
      data,
      last_version: typeof number === 'number' ? number : null,
      created_at: event.recordedAt,
      deleted_at: null,
    };
  }
  if (!row && kind.history?.neverActive?.includes(verb)) {
    const times = { created_at: event.recordedAt, deleted_at: event.recordedAt };
    return { kind: kind.noun, slug: null, data: {}, last_version: null, ...times };
  }
  if (!row) throw new Error(`the stream ${event.streamId} begins with ${event.type}`);
  const { kind: noun, slug, data, last_version, created_at, deleted_at } = row;
  const head = { kind: noun, slug, data, last_version, created_at, deleted_at };
  if (verb === 'updated') {
    const { slug: renamed = slug, ...fields } = event.data;
    const isDraft = typeof number === 'number' && versionedOnRequest(kind);
    const changes = isDraft ? withoutVersioned(kind, fields) : fields;
    return {
      ...head,
      slug: typeof renamed === 'string' ? renamed : slug,
      data: { ...data, ...changes },
      last_version: typeof number === 'number' ? number : last_version,
    };
  }
  if (verb === 'version_published' && kind.versions) return { ...head, data: { ...data, ...event.data } };
  if (verb === removalVerb(kind)) {
    // The secrets were deleted together with the record.
    const rest = 'secret_id' in data ? { ...data, secret_id: null } : data;
    return { ...head, data: rest, deleted_at: event.recordedAt };
  }
  if (verb === alertVerb && kind.cached?.limits) return head;
  const own = kind.history?.events?.[verb];
  if (!own) throw new Error(`the kind ${noun} has no event ${event.type}`);
  return { ...head, data: own(data, event as never) as Record<string, unknown> };
}

function withoutVersioned(kind: FoldedKind, data: Record<string, unknown>): Record<string, unknown> {
  const left = { ...data };
  for (const name of [...(kind.versions?.fields ?? []), versionMember(kind)]) delete left[name];
  return left;
}

/** The versions of records of these kinds: one permanent row for each event that added a version. */
export function resourceVersionModel(kinds: readonly AnyResource[]): InlineModel<ResourceVersionRow, ResourceEvent> {
  const versioned = new Map(kinds.filter((kind) => kind.versions).map((kind) => [kind.noun, kind]));
  const kindOf = ({ type }: ResourceEvent): AnyResource | undefined => versioned.get(type.slice(0, type.indexOf('.')));
  return {
    name: 'resource_version',
    nouns: [...versioned.keys()],
    jsonColumns: ['data'],
    upcasts: collectUpcasts(kinds.map(({ history = {} }) => history)),
    perEvent: {
      rowId(event) {
        const kind = kindOf(event);
        if (kind === undefined || event.type.endsWith('.version_published')) return null;
        const number = event.data[versionMember(kind)];
        return typeof number === 'number' ? versionId(event.streamId, number) : null;
      },
      streamOf: (rowId) => rowId.slice(0, rowId.lastIndexOf('@')),
    },
    evolve(_row, event) {
      const kind = kindOf(event);
      const number = kind && event.data[versionMember(kind)];
      if (kind === undefined || typeof number !== 'number') throw new Error(`${event.type} brings no version`);
      const fields = kind.versions?.fields ?? [];
      return {
        kind: kind.noun,
        resource_id: event.streamId,
        number,
        data: Object.fromEntries(fields.filter((name) => name in event.data).map((name) => [name, event.data[name]])),
        created_at: event.recordedAt,
      };
    },
  };
}
