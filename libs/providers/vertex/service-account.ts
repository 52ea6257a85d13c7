import { createHash, createPrivateKey, type KeyObject } from 'node:crypto';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { Upstream } from '../provider.ts';
import { asText, parseJson, toRecord } from '../turns/json-value.ts';

/** The parsed key file of a service account. */
export type ServiceAccount = {
  clientEmail: string;
  keyId: string | undefined;
  projectId: string | undefined;
  tokenUri: string;
  key: KeyObject;
  /**
   * Identifies its tokens. It covers the private key too, so that a file that merely names another account does not get
   * the tokens that were fetched with the real key.
   */
  digest: string;
};

const googleTokenUri = 'https://oauth2.googleapis.com/token';
const read = new WeakMap<Secret, ServiceAccount>();

/**
 * The service account of a target; undefined if it has none. Throws invalid_request / `invalid_credential` for an unusable
 * one, without quoting the file.
 */
export function getServiceAccount({ secrets }: Pick<Upstream, 'secrets'>): ServiceAccount | undefined {
  const secret = secrets['vertex_service_account_json'];
  if (secret === undefined) return undefined;
  let account = read.get(secret);
  if (account === undefined) {
    account = readServiceAccount(secret.reveal());
    read.set(secret, account);
  }
  return account;
}

function readServiceAccount(text: string): ServiceAccount {
  const parsed = parseJson(text);
  if (parsed === undefined) throw invalidCredential('it is not valid JSON');
  const file = toRecord(parsed);
  const clientEmail = asText(file['client_email']) ?? '';
  const pem = asText(file['private_key']) ?? '';
  if (clientEmail === '' || pem === '') throw invalidCredential('client_email or private_key is missing');
  const keyId = asText(file['private_key_id']);
  const tokenUri = asText(file['token_uri']) ?? googleTokenUri;
  const digest = createHash('sha256')
    .update(JSON.stringify([clientEmail, keyId, pem, tokenUri]))
    .digest('base64url');
  return { clientEmail, keyId, projectId: asText(file['project_id']), tokenUri, key: readKey(pem), digest };
}

function readKey(pem: string): KeyObject {
  let key: KeyObject;
  try {
    key = createPrivateKey(pem);
  } catch {
    throw invalidCredential('private_key is not a private key in PEM format');
  }
  if (key.asymmetricKeyType !== 'rsa') throw invalidCredential('private_key is not an RSA key');
  return key;
}

export const invalidCredential = (why: string, cause?: unknown): GatewayError =>
  new GatewayError(
    'invalid_request',
    'invalid_credential',
    `The Vertex AI service account is invalid: ${why}. Expected the JSON key file from Google Cloud.`,
    { param: 'vertex_service_account_json', ...(cause === undefined ? {} : { cause }) },
  );

/**
 * The URL at which tokens are fetched: Google's token endpoint, or one at the target's own origin (the simulator).
 * Otherwise a key file could make the gateway send requests to any server.
 */
export function getTokenUrl({ tokenUri }: ServiceAccount, { baseUrl }: Pick<Upstream, 'baseUrl'>): URL {
  if (tokenUri === googleTokenUri) return new URL(googleTokenUri);
  const url = URL.canParse(tokenUri) ? new URL(tokenUri) : null;
  if (url?.origin === baseUrl.origin && url.username === '' && url.password === '') return url;
  throw invalidCredential(`its token_uri must be ${googleTokenUri} or a URL at ${baseUrl.origin}`);
}
