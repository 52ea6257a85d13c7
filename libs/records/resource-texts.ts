import type { Route, RouteText } from '#libs/http/route.ts';
import type { AnyResource } from './define-resource.ts';

type Action = 'create' | 'list' | 'retrieve' | 'update' | 'delete' | 'listVersions' | 'retrieveVersion' | 'publish';

/**
 * The route of a kind with its description and errors: those of the kind itself, followed by those that hold for every
 * kind.
 */
export function withTexts(kind: AnyResource, action: Action, route: Route): Route {
  const texts: Partial<Record<Action, RouteText>> = kind.texts ?? {};
  const own = texts[action] ?? {};
  const common = commonTexts(kind)[action];
  const description = [own.description, common.description].filter((text) => text !== undefined).join(' ');
  return { ...route, ...own, description, errors: { ...own.errors, ...common.errors } };
}

/** The descriptions of the headings that kinds have in the documentation. */
export const tagsOf = (kinds: readonly AnyResource[]): Record<string, string> =>
  Object.fromEntries(kinds.flatMap(({ names: { tag, about } }) => (about === undefined ? [] : [[tag, about]])));

/** How the records of every kind are listed, found, created, changed and deleted, and the errors of each. */
function commonTexts(kind: AnyResource): Record<Action, RouteText> {
  const name = kind.slug ? 'slug or ID' : 'ID';
  const isOfWorkspace = (kind.owner ?? 'workspace') === 'workspace';
  const missing = { [`${kind.noun}_not_found`]: `the key sees no record with this ${name}` };
  const elsewhere: Record<string, string> = isOfWorkspace
    ? { workspace_not_found: '`workspace_id` is not a workspace that the key can use' }
    : {};
  const ofOrganisation: Record<string, string> =
    isOfWorkspace && !kind.hasShared
      ? {}
      : {
          organisation_key_required: `only organisation keys and owners can change ${isOfWorkspace ? 'shared records' : 'these records'}`,
        };
  const tooLarge: Record<string, string> =
    kind.cached && isOfWorkspace
      ? { records_too_large: 'the records of the workspace would exceed its memory limit' }
      : {};
  const found = { ...missing, ...elsewhere };
  const changing = { ...found, ...ofOrganisation };
  const noVersion = { ...found, [`${kind.noun}_version_not_found`]: 'the record has no such version' };
  return {
    create: {
      description: 'If you repeat a request with the same `Idempotency-Key`, no second record is created.',
      errors: {
        ...(kind.slug ? { slug_taken: 'another record has this slug' } : {}),
        ...(kind.countLimit ? { too_many_records: 'the workspace has reached its limit of these records' } : {}),
        ...tooLarge,
        ...elsewhere,
        ...ofOrganisation,
        idempotency_key_reused: 'the `Idempotency-Key` was used with another body',
        ...(kind.refuseReplay
          ? { idempotency_replay_unavailable: 'the original answer contained a value that is shown only once' }
          : {}),
      },
    },
    list: { description: `${pages(kind)} ${visible(kind)}`, errors: elsewhere },
    retrieve: { description: `Takes the ${name} of the record.`, errors: found },
    update: {
      description: `Members that you leave out stay unchanged. ${
        kind.versioned
          ? 'Each change creates a version; a request without a change does not.'
          : 'A request without a change adds no event.'
      }`,
      errors: { ...changing, ...tooLarge },
    },
    delete: {
      description: `The events of the record stay in the log${kind.slug ? ', and its slug can be used again' : ''}.`,
      errors: changing,
    },
    listVersions: {
      description: `Every version of the record, newest first${kind.versioned?.listsBare ? ', as a bare array' : ''}. Versions never change.`,
      errors: found,
    },
    retrieveVersion: {
      description: 'Takes the number of the version, starting at 1. Versions never change.',
      errors: noVersion,
    },
    publish: { errors: noVersion },
  };
}

const pages = (kind: AnyResource): string =>
  kind.listsBare
    ? 'A bare array of up to `page_size` records (100 by default), from page `current_page`, starting at 0.'
    : 'Pages start after the ID in `after` and have up to `limit` records, or are selected by `current_page` (starting at 0) and `page_size`, with `total`.';

/** Which records a key sees. */
function visible(kind: AnyResource): string {
  if (kind.owner === 'organisation') return 'Requires an organisation key or an owner.';
  if (kind.owner === 'itself') return 'A key of a workspace sees its own workspace.';
  const records = `Workspace keys see the records of their workspace${kind.hasShared ? ' and those that the organisation shares with it' : ''}.`;
  return kind.isOrganisationFirst
    ? `${records} Organisation keys see all records; pass \`workspace_id\` to limit the list to one workspace.`
    : `${records} With an organisation key, pass \`workspace_id\` to select another workspace.`;
}
