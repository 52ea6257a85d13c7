import type { RouteText } from '#libs/http/route.ts';
import type { AnyResource } from './define-resource.ts';
import { creationErrors } from './traits/creation.ts';
import { describePages } from './traits/portkey.ts';
import { describeVisible, isOfWorkspace, ownerErrors } from './traits/shared.ts';
import { slugErrors } from './traits/slugs.ts';

/** The descriptions of the kinds' headings in the documentation. */
export const tagsOf = (kinds: readonly AnyResource[]): Record<string, string> =>
  Object.fromEntries(kinds.flatMap(({ names: { tag, about } }) => (about === undefined ? [] : [[tag, about]])));

/**
 * The descriptions of how the records of a kind are listed, found, created, changed and deleted, with the errors of each
 * route, in addition to the kind's own texts. `found`: the errors of routes about one record.
 */
export function textsOf(kind: AnyResource) {
  const name = kind.slugs ? 'slug or ID' : 'ID';
  const elsewhere: Record<string, string> = isOfWorkspace(kind)
    ? { workspace_not_found: '`workspace_id` is not a workspace that the key can use' }
    : {};
  const tooLarge: Record<string, string> =
    kind.cached && isOfWorkspace(kind)
      ? { records_too_large: 'the records of the workspace would exceed its memory limit' }
      : {};
  const found = { [`${kind.noun}_not_found`]: `no record with this ${name} is visible to the key`, ...elsewhere };
  const changing = { ...found, ...ownerErrors(kind) };
  const unchanged = kind.versions
    ? 'Each change creates a version; a request without a change does not.'
    : 'A request without a change adds no event.';
  return {
    found,
    create: {
      description: 'If you repeat a request with the same `Idempotency-Key`, no second record is created.',
      errors: {
        ...(kind.slugs ? slugErrors : {}),
        ...tooLarge,
        ...elsewhere,
        ...ownerErrors(kind),
        ...creationErrors(kind),
      },
    },
    list: { description: `${describePages(kind.portkey ?? {})} ${describeVisible(kind)}`, errors: elsewhere },
    retrieve: { description: `Takes the ${name} of the record.`, errors: found },
    update: {
      description: `Members that you leave out stay unchanged. ${unchanged}`,
      errors: { ...changing, ...tooLarge },
    },
    delete: {
      description: `The events of the record stay in the log${kind.slugs ? ', and its slug can be used again' : ''}.`,
      errors: changing,
    },
  } satisfies Record<string, RouteText | Record<string, string>>;
}
