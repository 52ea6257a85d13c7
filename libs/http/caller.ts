/** `<area>.<read|write>`, such as `batches.write`. */
export type Scope = `${string}.${'read' | 'write'}`;

/** What a key brings when the request does not say otherwise. */
export type CallerDefaults = {
  readonly configId: string | null;
  /** false: requests of the key go by `configId`, and by no config of their own. */
  readonly allowsConfigOverride: boolean;
  readonly metadata: Readonly<Record<string, string>> | null;
};

/**
 * Who acts with a key: a user, a service (such as a program of a workspace), or the organisation itself, which alone
 * makes workspaces and keys for other workspaces than its own.
 */
export type Principal = { readonly type: 'user' | 'service_key' | 'organisation_key'; readonly id: string };

/** The authenticated party of a request. The workspace comes from the key and from nothing else. */
export type Caller = {
  readonly workspaceId: string;
  readonly keyId: string;
  readonly principal: Principal;
  readonly scopes: ReadonlySet<string> | 'all';
  readonly defaults: CallerDefaults;
  /** Infinity for never. */
  readonly expiresAtMs: number;
};
