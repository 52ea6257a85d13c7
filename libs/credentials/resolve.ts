import { hash } from 'node:crypto';
import type { Target } from '#libs/calls/call.ts';
import { plainLeaf } from '#libs/calls/plan/plain-plan.ts';
import type { Leaf } from '#libs/calls/plan/plan.ts';
import { NotInSnapshot } from '#libs/identity/not-in-snapshot.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { canonicalHost, parseCustomHost } from './custom-host.ts';
import { settingsForModel } from './deployments.ts';
import { authenticates, readSettings, type ProviderSettings } from './provider-settings.ts';
import { unknownProvider, waysToNameProvider } from './not-found.ts';
import { atLeaf } from './configs/read-config.ts';
import { splitSlug, type OwnProvider, type RequestedCredential } from './requested.ts';
import type { LiveCredential } from './stored.ts';

/**
 * Leads from the names in a request to the target of one attempt, for live calls, batch lines and fine-tuning jobs
 * alike. The functions here only use the snapshot: they never wait, and throw NotInSnapshot for missing records.
 */
export type ResolveDeps = {
  snapshot: {
    findCredential(workspaceId: string, slug: string): LiveCredential | undefined;
    findCredentialById(workspaceId: string, id: string): LiveCredential | undefined;
  };
  clock: Clock;
};

export type CredentialQuery = {
  workspaceId: string;
  credentials: RequestedCredential;
  /** The target of the plan. Its own destination takes precedence over `credentials`. */
  leaf: Leaf;
  /** The name of the leaf's config in messages. */
  param: string;
  model: string | null;
  /** Whether the config chose the model. */
  isLeafsModel: boolean;
};

/** The credential of a request. `none`: the request names neither a virtual key nor a provider. */
export type Credential =
  | { type: 'none' }
  | { type: 'virtual_key'; key: LiveCredential }
  | ({
      type: 'provider';
      provider: string;
      baseUrl: URL;
      customHost: string | null;
      apiKey: Secret | null;
    } & ProviderSettings);

/** `model` is the model to request from the provider, without the slug of `@slug/model`. */
export type ResolvedTarget = { target: Target; model: string | null };

/**
 * Returns the target of one attempt. `mapped`: the fields that have to be added to it from secret references. Throws
 * like `chooseCredential`, and for a virtual key that this process cannot use.
 */
export function resolveTarget(
  deps: ResolveDeps,
  query: CredentialQuery,
): ResolvedTarget & Pick<LiveCredential, 'mapped'> {
  const { credential, model } = chooseCredential(deps, query);
  if (credential.type === 'none') throw missingCredentials();
  const isKey = credential.type === 'virtual_key';
  const target = isKey ? targetOfKey(credential.key, model) : targetOfProvider(credential, query.workspaceId);
  if (model !== null && model !== query.model) target.model = model;
  return isKey && credential.key.mapped !== undefined
    ? { target, model, mapped: credential.key.mapped }
    : { target, model };
}

/**
 * Chooses and checks the credential of one attempt (AUTH-1): a virtual key, or a provider with the caller's key, each with
 * or without a custom host. The virtual key of `@slug/model` takes precedence over everything else if the config chose
 * the model or its target names no destination; otherwise the slug is only removed. Throws invalid_request with the
 * header, parameter or member at fault, and forbidden for an integration that the workspace cannot use.
 */
export function chooseCredential(
  deps: ResolveDeps,
  query: CredentialQuery,
): { credential: Credential; model: string | null } {
  const { workspaceId, leaf, isLeafsModel } = query;
  const named = splitSlug(query.model);
  const model = named?.model ?? query.model;
  const { used, names } = mergeLeaf(query);
  if (named !== null && (isLeafsModel || !namesDestination(leaf))) {
    const key = usableKey(deps, workspaceId, { slug: named.slug, param: 'model' }, used, names);
    return { credential: { type: 'virtual_key', key }, model };
  }
  if (used.virtualKey !== null) {
    const key = usableKey(deps, workspaceId, used.virtualKey, used, names);
    if (used.provider !== null) assertSameProvider(key, used.provider, names.provider);
    return { credential: { type: 'virtual_key', key }, model };
  }
  return { credential: used.provider === null ? { type: 'none' } : chooseProvider(used.provider, used, names), model };
}

/** Whether a target of a plan names its own destination. */
export const namesDestination = ({ credentials }: Leaf): boolean =>
  credentials.virtualKey !== null || credentials.provider !== null || credentials.apiKey !== null;

/** Whether a target leaves it to the call, or to a public model, where its calls go. */
export const isOpenLeaf = (leaf: Leaf): boolean => {
  const { customHost, settings, secrets } = leaf.credentials;
  const hasOwn = customHost !== null || Object.keys(settings).length > 0 || Object.keys(secrets).length > 0;
  return !namesDestination(leaf) && !hasOwn && leaf.prompt === null;
};

/** The names of a credential's fields in messages. */
type FieldNames = { provider: string; customHost: string; key: string };

const headerNames: FieldNames = {
  provider: 'x-gateway-provider',
  customHost: 'x-gateway-custom-host',
  key: 'authorization',
};

/**
 * Completes the credential of a target with that of the caller. A key, a host and settings in the headers belong to the
 * provider that the headers name, so a target of another provider gets none of them.
 */
function mergeLeaf({ credentials: sent, leaf, param }: CredentialQuery): {
  used: RequestedCredential;
  names: FieldNames;
} {
  // Without a config, no merge is needed.
  if (leaf.credentials === plainLeaf.credentials) return { used: sent, names: headerNames };
  const { virtualKey, provider, apiKey, customHost, settings, secrets } = leaf.credentials;
  const at = atLeaf(leaf, param);
  const isCallers = provider === null || sent.provider === null || isSameProvider(provider, sent.provider);
  const hasOwnKey = apiKey !== null || Object.keys(secrets).length > 0;
  const used =
    virtualKey === null ? (hasOwnKey ? null : sent.virtualKey) : { slug: virtualKey, param: `${at}.virtual_key` };
  // A virtual key has its own settings. An additional host is only compared with its stored one.
  const inherits = virtualKey === null && isCallers;
  const callers = inherits && used === null ? (sent.own ?? (sent.headers && readSettings(sent.headers))) : undefined;
  return {
    used: {
      virtualKey: used,
      // A virtual key determines its provider, whatever the headers contain.
      provider: provider ?? (virtualKey === null ? sent.provider : null),
      providerKey: apiKey ?? (inherits ? sent.providerKey : null),
      customHost: customHost ?? (isCallers ? sent.customHost : null),
      config: null,
      own:
        callers === undefined
          ? { settings, secrets }
          : {
              ...callers,
              settings: { ...callers.settings, ...settings },
              secrets: { ...callers.secrets, ...secrets },
            },
    },
    names: {
      provider: provider === null ? headerNames.provider : `${at}.provider`,
      customHost: customHost === null && sent.customHost !== null ? headerNames.customHost : `${at}.custom_host`,
      key: provider === null ? headerNames.key : `${at}.api_key`,
    },
  };
}

const isSameProvider = (one: string, other: string): boolean =>
  one === other || (findProvider(one) !== undefined && findProvider(one) === findProvider(other));

function usableKey(
  { snapshot, clock }: ResolveDeps,
  workspaceId: string,
  named: NonNullable<RequestedCredential['virtualKey']>,
  { customHost }: RequestedCredential,
  names: FieldNames,
): LiveCredential {
  const key =
    named.id === undefined
      ? snapshot.findCredential(workspaceId, named.slug)
      : snapshot.findCredentialById(workspaceId, named.id);
  if (!key) throw named.id === undefined ? unknownKey(named.slug, named.param) : deletedKey(named.id, named.holder);
  assertUsable(key, clock, named.id === undefined ? named.param : null);
  if (customHost !== null) assertStoredHost(key, customHost, names.customHost);
  return key;
}

/** Throws when a virtual key or a provider is expired, and when the workspace can no longer use the integration. */
function assertUsable(key: LiveCredential, clock: Clock, param: string | null): void {
  if (key.blocked !== undefined) throw blocked(key, key.blocked, param);
  if (key.expiresAtMs > clock.now()) return;
  throw new GatewayError(
    'invalid_request',
    key.noun === 'provider' ? 'provider_expired' : 'virtual_key_expired',
    `The ${key.noun} '${key.slug}' expired at ${new Date(key.expiresAtMs).toISOString()}. Extend it or use another one.`,
    { param },
  );
}

const blocked = ({ slug }: LiveCredential, reason: NonNullable<LiveCredential['blocked']>, param: string | null) => {
  const texts = {
    integration_deleted: 'was deleted. Create a provider from another integration.',
    integration_unreadable: 'cannot be read. Update it to store it again, or delete it.',
    integration_not_shared: 'is no longer shared with this workspace. An organisation key can share it again.',
  };
  const kind = reason === 'integration_unreadable' ? 'unavailable' : 'forbidden';
  return new GatewayError(kind, reason, `The integration of the provider '${slug}' ${texts[reason]}`, { param });
};

/** The same error for a key that never existed, one that was deleted, and one of another workspace. */
const unknownKey = (slug: string, param: string): GatewayError =>
  new NotInSnapshot(
    'invalid_request',
    'virtual_key_not_found',
    `There is no virtual key or provider with the slug '${slug.slice(0, 100)}'. GET /v1/virtual-keys and ` +
      'GET /v1/providers list those that you can use.',
    { param },
  );

const deletedKey = (id: string, holder: string): GatewayError =>
  new NotInSnapshot(
    'invalid_request',
    'virtual_key_deleted',
    `The virtual key that this ${holder} was created with was deleted.`,
    { id },
  );

function assertSameProvider(key: LiveCredential, name: string, param: string): void {
  if (findProvider(name)?.id === key.provider) return;
  throw new GatewayError(
    'invalid_request',
    'provider_mismatch',
    `The ${key.noun} '${key.slug}' is for the provider '${key.provider}', not for '${name.slice(0, 100)}'. ` +
      'Leave the provider out.',
    { param },
  );
}

/** A stored credential is only sent to the host that it was stored for (CVE-2024-6587). */
function assertStoredHost(key: LiveCredential, customHost: string, param: string): void {
  const given = canonicalHost(parseCustomHost(customHost, param));
  if (key.baseUrl && canonicalHost(key.baseUrl) === given) return;
  throw new GatewayError(
    'invalid_request',
    'custom_host_mismatch',
    `The ${key.noun} '${key.slug}' is not stored for this custom host. Leave out the custom host, or store a virtual key for this host.`,
    { param },
  );
}

const noSettings: OwnProvider = { settings: {}, secrets: {} };

function chooseProvider(name: string, used: RequestedCredential, names: FieldNames): Credential {
  const { providerKey, headers } = used;
  const provider = findProvider(name);
  if (!provider) throw unknownProvider(name, names.provider);
  const given: OwnProvider = used.own ?? (headers === undefined ? noSettings : readSettings(headers));
  const { customHost: ownHost = null, ...own } = given;
  const customHost = used.customHost ?? ownHost;
  const host = customHost === null ? null : parseCustomHost(customHost, names.customHost);
  const baseUrl = host ?? provider.baseUrlOf(own.settings);
  if (!baseUrl) {
    throw new GatewayError(
      'invalid_request',
      'missing_custom_host',
      `The provider '${provider.id}' has no default address, or the settings that determine it are missing. Set the address with ${names.customHost}, or add those settings.`,
      { param: names.customHost },
    );
  }
  // A self-hosted server does not always need a key; a hosted provider does.
  if (!providerKey && provider.needsCredential && !authenticates(own)) {
    throw new GatewayError(
      'invalid_request',
      'missing_credentials',
      `The provider '${provider.id}' needs a key. Send your provider key as Authorization: Bearer and the gateway key in x-gateway-api-key, or use a virtual key.`,
      { param: names.key },
    );
  }
  return {
    type: 'provider',
    provider: provider.id,
    baseUrl,
    customHost: host && canonicalHost(host),
    apiKey: providerKey,
    ...own,
  };
}

/** The error for a request that names no provider. */
export const missingCredentials = (): GatewayError =>
  new GatewayError(
    'invalid_request',
    'missing_credentials',
    `The request does not name a provider. ${waysToNameProvider}`,
    { param: 'x-gateway-virtual-key' },
  );

/** The target of a virtual key for a model. Throws if this process cannot use the key. */
function targetOfKey(key: LiveCredential, model: string | null): Target {
  if (!key.baseUrl) {
    throw new GatewayError(
      'unsupported_operation',
      'provider_not_supported',
      `The provider '${key.provider}' of the ${key.noun} '${key.slug}' is not supported by this release.`,
    );
  }
  if (!key.secrets) {
    throw new GatewayError(
      'unavailable',
      'virtual_key_unreadable',
      `The stored credential of the ${key.noun} '${key.slug}' cannot be decrypted. Store it again with ` +
        (key.integration === undefined
          ? `PUT /v1/virtual-keys/${key.slug}.`
          : `PUT /v1/integrations/${key.integration}.`),
    );
  }
  const target: Target = {
    provider: key.provider,
    baseUrl: key.baseUrl,
    apiKey: key.apiKey,
    settings: settingsForModel(key, model),
    secrets: key.secrets,
    secretOrigin: key.baseUrl.origin,
    label: key.slug,
    credentialId: key.id,
    workspaceId: key.workspaceId,
  };
  if (key.integration !== undefined) target.integration = key.integration;
  if (key.sharedAccount !== undefined) target.sharedAccount = key.sharedAccount;
  if (key.models !== undefined) target.models = key.models;
  return target;
}

/** The target of a provider with the caller's own key. */
function targetOfProvider(
  { provider, baseUrl, apiKey, settings, secrets }: Extract<Credential, { type: 'provider' }>,
  workspaceId: string,
): Target {
  const own = { provider, baseUrl, apiKey, settings, secrets };
  const credentialId = callerCredentialId(workspaceId, own);
  return { ...own, secretOrigin: null, label: provider, credentialId, workspaceId };
}

/**
 * Identifies a credential that came with a call, as its ID identifies a virtual key: a digest of the credential, its
 * destination and the workspace, so that one workspace learns nothing about another's use of the same key. The digest
 * cannot be reversed.
 */
function callerCredentialId(
  workspaceId: string,
  { provider, baseUrl, apiKey, settings, secrets }: Omit<Target, 'label' | 'secretOrigin'>,
): string {
  const others = Object.entries(secrets).map(([name, secret]) => [name, secret.reveal()]);
  const facts = [workspaceId, provider, baseUrl.href, apiKey?.reveal() ?? null, settings, others];
  return `own_${hash('sha256', JSON.stringify(facts), 'base64url').slice(0, 22)}`;
}
