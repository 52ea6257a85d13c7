import type { AllowedNetworks } from './allowed-networks.ts';

/** `<area>.<read|write>`, like `batches.write`. */
export type Scope = `${string}.${'read' | 'write'}`;

/** The key's defaults for a request that does not override them. */
export type CallerDefaults = {
  readonly configId: string | null;
  /** false: requests of the key always use the config `configId` and cannot name another one. */
  readonly allowsConfigOverride: boolean;
  readonly metadata: Readonly<Record<string, string>> | null;
  /** Metadata that the request cannot replace. Absent: none. */
  readonly lockedMetadata?: Readonly<Record<string, string>>;
  /** How the bodies of its calls are recorded. null: never; absent: neither the key nor its workspace asks for it. */
  readonly recording?: Recording | null;
  /** Whether the record of a call has salted digests of its bodies. Absent: no. */
  readonly hashesBodies?: boolean;
};

/** How bodies are recorded. */
export type Recording = {
  /** RE2 patterns. Matches are not stored. */
  readonly redact: readonly string[];
  /** Absent: the retention of the installation applies. */
  readonly retentionDays?: number;
};

/**
 * The actor behind a key: a user, a service (such as a program of a workspace), or the organisation itself. The rights
 * of each: libs/http/rights.ts.
 */
export type Principal = {
  readonly type: 'user' | 'service_key' | 'organisation_key';
  /** The ID of the user, or of the key. */
  readonly id: string;
  /** The role of a user in the workspace; null for keys, which are limited only by their scopes. */
  readonly role: string | null;
  /** The role of a user in the organisation: owner, admin or member. */
  readonly organisationRole?: string;
};

/** The owner of records that belong to no workspace. An installation has one organisation. */
export const organisationId = 'org_default';

/** The authenticated party of a request. The workspace comes only from the key. */
export type Caller = {
  readonly workspaceId: string;
  /** For a user who signed in with a token instead of a key: the ID of the user. */
  readonly keyId: string;
  readonly principal: Principal;
  readonly scopes: ReadonlySet<string> | 'all';
  readonly defaults: CallerDefaults;
  /** Every list must contain the address of a request. Absent: any address. */
  readonly networks?: readonly AllowedNetworks[];
  /** Infinity if the key does not expire. */
  readonly expiresAtMs: number;
  /**
   * SHA-256 of the value of the key, hex: a key that was rotated has several. Absent for a user who signed in with a
   * token.
   */
  readonly keyDigest?: string;
};
