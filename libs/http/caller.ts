/** `<area>.<read|write>`, such as `batches.write`. */
export type Scope = `${string}.${'read' | 'write'}`;

/** What a key brings when the request does not say otherwise. */
export type CallerDefaults = {
  readonly configId: string | null;
  /** false: requests of the key go by `configId`, and by no config of their own. */
  readonly allowsConfigOverride: boolean;
  readonly metadata: Readonly<Record<string, string>> | null;
};

/** The authenticated party of a request. The workspace comes from the key and from nothing else. */
export type Caller = {
  readonly workspaceId: string;
  readonly keyId: string;
  readonly scopes: ReadonlySet<string> | 'all';
  readonly defaults: CallerDefaults;
  /** Infinity for never. */
  readonly expiresAtMs: number;
};
