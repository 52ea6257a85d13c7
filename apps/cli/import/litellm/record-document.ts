/** A record as files of `sluice apply` have it. `slug` or `name` addresses it. */
export type RecordDocument = {
  kind: string;
  slug?: string;
  name?: string;
  spec: Record<string, unknown>;
};
