import type { AllowedNetworks } from '#libs/http/allowed-networks.ts';
import type { Caller, Recording } from '#libs/http/caller.ts';
import { metadataTextMax } from '#libs/http/request-context.ts';
import type { LiveApiKey } from './authenticate.ts';
import { reachesEveryWorkspace } from '#libs/http/rights.ts';
import { scopesWithin, getWorkspaceRole, type LiveUser } from '../http/roles.ts';

/** The settings that a workspace adds to the calls of its keys. */
export type KeyDefaults = {
  readonly metadata: Readonly<Record<string, string>> | null;
  /** Metadata that neither keys nor requests can replace. Absent: none. */
  readonly lockedMetadata?: Readonly<Record<string, string>>;
  /** The config of users' keys without their own config. */
  readonly userConfigId: string | null;
  /** Absent: bodies are recorded for keys that ask for it. */
  readonly recording?: Recording & { readonly isOn: boolean };
  /** Whether records of calls have salted digests of the bodies. Absent: no. */
  readonly hashesBodies?: boolean;
  /**
   * The networks that requests with its keys can come from, in addition to those of the organisation. Absent: anywhere.
   */
  readonly networks?: AllowedNetworks;
};

/** The records from which the callers of keys are computed. Maps that have not changed are the same objects. */
export type KeySources = {
  /** By digest, as stored. */
  readonly keys: ReadonlyMap<string, LiveApiKey>;
  readonly workspaces: ReadonlyMap<string, { readonly defaults: KeyDefaults | null }>;
  readonly users: ReadonlyMap<string, LiveUser>;
};
export type LiveKeys = KeySources & { readonly byDigest: ReadonlyMap<string, LiveApiKey> };

/**
 * Returns the callers of all valid keys, with the settings of their workspaces and within the rights of their users.
 * Computed once for each change, so that it costs nothing per request. The keys of a user who has left the workspace
 * are not included.
 */
export function liveKeys(sources: KeySources, previous: LiveKeys | null): LiveKeys {
  const { keys, workspaces, users } = sources;
  if (previous?.keys === keys && previous.workspaces === workspaces && previous.users === users) return previous;
  const byDigest = new Map<string, LiveApiKey>();
  for (const [digest, key] of keys) {
    const { workspaceId, principal } = key.caller;
    const defaults = workspaces.get(workspaceId)?.defaults ?? null;
    const user = principal.type === 'user' ? users.get(principal.id) : undefined;
    // Computing ten thousand callers blocks the event loop for 20 ms, and one change affects only a few of them.
    const isAsBefore =
      previous?.keys.get(digest) === key &&
      (previous.workspaces.get(workspaceId)?.defaults ?? null) === defaults &&
      (principal.type !== 'user' || previous.users.get(principal.id) === user);
    const before = isAsBefore ? previous.byDigest.get(digest) : undefined;
    const caller = before?.caller ?? effectiveCaller(key.caller, defaults, user);
    if (caller !== null) byDigest.set(digest, before ?? (caller === key.caller ? key : { ...key, caller }));
  }
  return { ...sources, byDigest };
}

/**
 * Returns the caller that is stored with its key, with the settings of its workspace. The key of a user is limited to
 * the user's role and rights. null: the user does not belong to the workspace (any more).
 */
export function effectiveCaller(
  caller: Caller,
  defaults: KeyDefaults | null,
  user: LiveUser | undefined,
): Caller | null {
  const added = defaults?.networks;
  // Keys of the organisation are exempt, so that it can always correct the list.
  const isAdded = added !== undefined && !reachesEveryWorkspace(caller);
  const networks = isAdded ? { networks: Object.freeze([...(caller.networks ?? []), added]) } : {};
  if (caller.principal.type !== 'user') {
    return defaults === null ? caller : { ...caller, ...networks, defaults: withDefaults(caller, defaults, null) };
  }
  const role = user === undefined ? null : getWorkspaceRole(user, caller.workspaceId);
  if (user === undefined || role === null) return null;
  const principal = Object.freeze({ ...caller.principal, role, organisationRole: user.role });
  const scopes = scopesWithin(role, caller.scopes);
  return Object.freeze({ ...caller, ...networks, defaults: withDefaults(caller, defaults, user), principal, scopes });
}

/** The key of metadata by which analytics counts users. */
const userKey = '_user';

/**
 * The calls of a user always count for the user. For other locked metadata, the workspace's values replace those of the
 * key.
 */
function withDefaults({ defaults }: Caller, added: KeyDefaults | null, user: LiveUser | null): Caller['defaults'] {
  const own = user === null ? null : { [userKey]: user.email.length <= metadataTextMax ? user.email : user.id };
  const recording = added?.recording;
  // The redaction rules of the workspace apply to every key.
  const isRecorded = defaults.recording === undefined ? recording?.isOn === true : defaults.recording !== null;
  const locked = { ...defaults.lockedMetadata, ...added?.lockedMetadata, ...own };
  return Object.freeze({
    ...defaults,
    ...(Object.keys(locked).length === 0 ? {} : { lockedMetadata: Object.freeze(locked) }),
    ...(isRecorded && recording !== undefined ? { recording } : {}),
    ...(added?.hashesBodies === true ? { hashesBodies: true } : {}),
    configId: defaults.configId ?? (user === null ? null : (added?.userConfigId ?? null)),
    metadata: added?.metadata ? Object.freeze({ ...added.metadata, ...defaults.metadata }) : defaults.metadata,
  });
}
