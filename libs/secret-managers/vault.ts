import { readFile } from 'node:fs/promises';
import { GatewayError } from '#libs/kernel/errors.ts';
import { memberSecret, type FetchedSecret } from './fetched-secret.ts';
import { invalidReference } from './invalid-reference.ts';
import { parseAnswer } from './parse-answer.ts';
import { SecretError } from './secret-error.ts';
import type { LiveSecretReference, SecretManager, Send } from './secret-manager.ts';

type Options = {
  send: Send;
  /** Throws for an address that must not be called. */
  checkDestination: (url: URL) => void;
  /** Monotonic, in milliseconds. */
  now: () => number;
  kubernetes: KubernetesOptions;
};

export type KubernetesOptions = {
  /** The file with the token of this process's service account. */
  tokenFile: string;
  /** The origins of the Vaults that can receive this token. Any other server could use it in our name. */
  vaults: ReadonlySet<string>;
};

type Token = { text: string; untilMs: number };

/** A token is not used in the last part of its life, because a request can take that long. */
const leaseShare = 0.8;
/** Vault answers 0 for a token that does not expire. */
const endlessLeaseMs = 3_600_000;

/**
 * Secrets of HashiCorp Vault (or OpenBao), from a KV secrets engine of version 2, by Vault's HTTP API: `GET
 * /v1/<mount>/data/<path>`. Signs in with a token, an AppRole, or the service account of this process in Kubernetes. A
 * token from a login is used until shortly before its lease ends, or until Vault refuses it.
 */
export function vaultSecrets({ send, checkDestination, now, kubernetes }: Options): SecretManager {
  // Tokens by the current version of the reference. A changed reference is another object.
  const tokens = new WeakMap<LiveSecretReference, Token>();

  const login = async (reference: LiveSecretReference): Promise<string> => {
    const { slug, auth, secrets } = reference;
    const type = auth['vault_auth_type'];
    if (type === 'token') return secrets?.['vault_token']?.reveal() ?? '';
    const kept = tokens.get(reference);
    if (kept !== undefined && kept.untilMs > now()) return kept.text;
    const body =
      type === 'kubernetes'
        ? { role: auth['vault_role'], jwt: await readServiceToken(slug, kubernetes.tokenFile) }
        : { role_id: auth['vault_role_id'], secret_id: secrets?.['vault_secret_id']?.reveal() };
    const url = getRegionAddress(reference, `auth/${auth['vault_auth_mount'] ?? type}/login`);
    const answer = await send(reference, {
      method: 'POST',
      url,
      headers: [...headersOf(reference), 'content-type', 'application/json'],
      body: Buffer.from(JSON.stringify(body)),
    });
    if (answer.status >= 400 && answer.status < 404) {
      throw new SecretError('denied', slug, `cannot sign in to its Vault, which returned status ${answer.status}`);
    }
    refuseStatus(slug, answer.status, 'the login');
    const { auth: granted } = parseAnswer(slug, answer.body) as { auth?: Record<string, unknown> };
    const text = granted?.['client_token'];
    if (typeof text !== 'string' || text === '') {
      throw new SecretError('unavailable', slug, 'cannot sign in to its Vault, which returned no token');
    }
    const seconds = Number(granted?.['lease_duration'] ?? 0);
    const lifeMs = seconds > 0 ? seconds * 1_000 * leaseShare : endlessLeaseMs;
    tokens.set(reference, { text, untilMs: now() + lifeMs });
    return text;
  };

  const read = async (reference: LiveSecretReference): Promise<{ status: number; body: Buffer }> => {
    const token = await login(reference);
    const headers = [...headersOf(reference), 'x-vault-token', token];
    return send(reference, { method: 'GET', url: getRegionAddress(reference, dataPath(reference.path)), headers });
  };

  const check: SecretManager['check'] = ({ auth, path }) => {
    const url = parseAddress(auth['vault_addr'] ?? '');
    checkPath(path, 'secret_path');
    if (path.split('/').length < 2) {
      throw invalidReference('secret_path', 'expected the mount and the path, such as secret/data/openai');
    }
    if (auth['vault_auth_mount'] !== undefined) checkPath(auth['vault_auth_mount'], 'auth_config.vault_auth_mount');
    if (auth['vault_namespace'] !== undefined && !/^[\w./-]+$/.test(auth['vault_namespace'])) {
      throw invalidReference('auth_config.vault_namespace', 'expected a namespace, such as team-a/search');
    }
    if (auth['vault_auth_type'] === 'kubernetes' && !kubernetes.vaults.has(url.origin)) {
      throw invalidReference(
        'auth_config.vault_addr',
        `the operator does not allow the token of this service account to be sent to ${url.origin} ` +
          '(SLUICE_SECRETS_KUBERNETES_VAULTS)',
      );
    }
    checkDestination(url);
  };

  return {
    check,
    async fetch(reference) {
      check(reference);
      const { slug } = reference;
      let answer = await read(reference);
      // The token may have been revoked, or its lease may have ended early. One more login shows which.
      if (answer.status === 403 && tokens.delete(reference)) answer = await read(reference);
      if (answer.status === 403) throw new SecretError('denied', slug, 'was rejected by its Vault (403)');
      if (answer.status === 404)
        throw new SecretError('not_found', slug, 'names a secret that does not exist in its Vault');
      refuseStatus(slug, answer.status, 'the request for the secret');
      return toSecret(slug, parseAnswer(slug, answer.body));
    },
  };
}

function toSecret(slug: string, answer: Record<string, unknown>): FetchedSecret {
  const { data } = answer;
  const versioned = typeof data === 'object' && data !== null && 'data' in data && 'metadata' in data ? data : null;
  if (versioned === null) {
    const what = 'does not name a secret of a KV version 2 secrets engine. Only this engine is supported';
    throw new SecretError('malformed', slug, what);
  }
  const members = versioned.data;
  if (typeof members !== 'object' || members === null) {
    throw new SecretError('not_found', slug, 'names a secret whose current version was deleted');
  }
  return memberSecret(slug, members as Record<string, unknown>);
}

/** Throws for every status that is not 200, without repeating Vault's message. */
function refuseStatus(slug: string, status: number, what: string): void {
  if (status === 200) return;
  throw new SecretError('unavailable', slug, `cannot be fetched: its Vault answered ${what} with status ${status}`);
}

/** The path of Vault's API: a path without the segment `data` gets it after its mount. */
function dataPath(path: string): string {
  const [mount = '', ...rest] = path.split('/');
  return rest.includes('data') ? path : [mount, 'data', ...rest].join('/');
}

/** Throws invalid_request for segments that would change the destination of the path. */
function checkPath(path: string, param: string): void {
  const isPlain = path.split('/').every((part) => part !== '' && part !== '.' && part !== '..');
  if (isPlain && !/[\0-\x20\\?#%\x7f]/.test(path)) return;
  throw invalidReference(param, 'expected names separated by /, such as secret/data/openai');
}

function parseAddress(text: string): URL {
  const url = URL.parse(text);
  const isAddress = url !== null && /^https?:$/.test(url.protocol) && url.username === '' && url.password === '';
  if (isAddress && url.search === '' && url.hash === '') return url;
  const why = 'expected the http or https URL of a Vault, without a user name, password, query or fragment';
  throw invalidReference('auth_config.vault_addr', why);
}

/** `vault_addr` can have a path, if Vault is behind a proxy. */
function getRegionAddress({ auth }: LiveSecretReference, path: string): URL {
  const url = parseAddress(auth['vault_addr'] ?? '');
  const segments = path.split('/').map((segment) => encodeURIComponent(segment));
  url.pathname = `${url.pathname.replace(/\/+$/, '')}/v1/${segments.join('/')}`;
  return url;
}

function headersOf({ auth }: LiveSecretReference): string[] {
  const { vault_namespace: namespace } = auth;
  return ['x-vault-request', 'true', ...(namespace === undefined ? [] : ['x-vault-namespace', namespace])];
}

/** Kubernetes replaces the file before the token expires. */
async function readServiceToken(slug: string, file: string): Promise<string> {
  try {
    return (await readFile(file, 'utf8')).trim();
  } catch (error) {
    if (error instanceof GatewayError) throw error;
    const what = 'cannot sign in: this process has no service account token (SLUICE_SECRETS_KUBERNETES_TOKEN)';
    throw new SecretError('unavailable', slug, what, error);
  }
}
