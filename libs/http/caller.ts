import type { AllowedNetworks } from './allowed-networks.ts';

/** `<area>.<read|write>`, like `batches.write`. */
export type Scope = `${string}.${'read' | 'write'}`;

/** What the key adds to a request that does not say otherwise. */
export type CallerDefaults = {
  readonly configId: string | null;
  /** False: requests of the key always use the config `configId`, never one of their own. */
  readonly allowsConfigOverride: boolean;
  readonly metadata: Readonly<Record<string, string>> | null;
  /** Metadata that the request cannot replace. Absent: none. */
  readonly lockedMetadata?: Readonly<Record<string, string>>;
  /** How the bodies of its calls are recorded. null: never; absent: neither the key nor its workspace asks for it. */
  readonly recording?: Recording | null;
};

/** What is recorded of bodies. */
export type Recording = {
  /** RE2 patterns: what they match is not stored. */
  readonly redact: readonly string[];
  /** Absent: as long as the installation keeps bodies. */
  readonly retentionDays?: number;
};

/**
 * Who acts with a key: a user, a service (such as a program of a workspace), or the organisation itself. What each
 * can do: libs/http/rights.ts.
 */
export type Principal = {
  readonly type: 'user' | 'service_key' | 'organisation_key';
  /** Of the user, or of the key. */
  readonly id: string;
  /** A user's in the workspace; null for keys, which may do what their scopes say. */
  readonly role: string | null;
  /** A user's in the organisation: owner, admin or member. */
  readonly organisationRole?: string;
};

/** The owner of what belongs to no workspace. There is one organisation in an installation. */
export const organisationId = 'org_default';

/** The authenticated party of a request. The workspace comes from the key and from nothing else. */
export type Caller = {
  readonly workspaceId: string;
  /** Of a user who signed in with a token instead of a key: the user's. */
  readonly keyId: string;
  readonly principal: Principal;
  readonly scopes: ReadonlySet<string> | 'all';
  readonly defaults: CallerDefaults;
  /** Each of them must have the address of a request. Absent: any address. */
  readonly networks?: readonly AllowedNetworks[];
  /** Infinity if the key does not expire. */
  readonly expiresAtMs: number;
  /** SHA-256 of the value of the key, hex: a key that was rotated has several. Absent for a user who signed in with a token. */
  readonly keyDigest?: string;
};
