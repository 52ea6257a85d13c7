import type { ManagerType } from '#libs/contracts/secret-references.ts';
import type { OutboundRequest } from '#libs/providers/provider.ts';
import type { SecretMembers } from '#libs/secrets/secrets.ts';
import type { FetchedSecret } from './fetched-secret.ts';

/** The location of a secret, as every process stores it in memory. A changed reference is another object. */
export type LiveSecretReference = {
  readonly id: string;
  /** Its name in messages. */
  readonly slug: string;
  /** The workspace that owns it, or the organisation. */
  readonly ownerId: string;
  readonly managerType: ManagerType;
  /** The members of `auth_config` that are not secret. */
  readonly auth: Readonly<Record<string, string>>;
  /** The secret members; null when they cannot be decrypted. */
  readonly secrets: SecretMembers | null;
  readonly path: string;
  /** The member of the secret that is used if a mapping names none; null for the whole secret. */
  readonly key: string | null;
  /** Further members that a workspace can use from a reference of the organisation. */
  readonly allowedKeys: readonly string[];
  /** The workspaces that can map it; null for all. */
  readonly workspaces: ReadonlySet<string> | null;
};

/** The part that is checked when a reference is stored. */
export type ReferenceForm = Pick<LiveSecretReference, 'managerType' | 'auth' | 'path'>;

/** Sends one request to the manager of a reference and returns the whole answer. Throws SecretError. */
export type Send = (
  reference: LiveSecretReference,
  request: Pick<OutboundRequest, 'method' | 'headers'> & { url: URL; body?: Buffer },
) => Promise<{ status: number; body: Buffer }>;

/** One kind of secret manager. */
export type SecretManager = {
  /** Throws GatewayError `invalid_request` for a reference that could never be fetched. */
  check(form: ReferenceForm): void;
  /** Throws SecretError, or GatewayError `invalid_request`. */
  fetch(reference: LiveSecretReference): Promise<FetchedSecret>;
};

/** The largest secret: several times a key file with its certificates. */
export const secretBytesMax = 65_536;
