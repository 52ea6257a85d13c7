import type { LimitRule } from './limit-rule.ts';

/** The limits of one workspace, by the calls for which they are checked. */
export type WorkspaceRules = {
  readonly ofWorkspace: readonly LimitRule[];
  /** Those of them that count calls by their model. */
  readonly byModel: readonly LimitRule[];
  readonly byKey: ReadonlyMap<string, readonly LimitRule[]>;
  readonly byCredential: ReadonlyMap<string, readonly LimitRule[]>;
};

/** The records of one kind in memory; a new object after every change of one of them. */
type LiveRecords = ReadonlyMap<string, { limits: readonly LimitRule[] }>;

/**
 * The limits of each workspace that has some, compiled again when records have changed. Called for every call of every
 * workspace: without a change it costs one comparison.
 */
export function createLimitRules(snapshot: {
  version: () => number;
  records: () => readonly LiveRecords[];
}): (workspaceId: string) => WorkspaceRules | undefined {
  let version = Number.NaN;
  let compiledOf: readonly LiveRecords[] = [];
  let rules: ReadonlyMap<string, WorkspaceRules> = new Map();
  return (workspaceId) => {
    const now = snapshot.version();
    if (now !== version) {
      version = now;
      const records = snapshot.records();
      const isSame = records.length === compiledOf.length && records.every((kind, index) => kind === compiledOf[index]);
      if (!isSame) {
        compiledOf = records;
        rules = compile(records);
      }
    }
    return rules.size === 0 ? undefined : rules.get(workspaceId);
  };
}

const dependsOnModel = ({ conditions, groupBy }: LimitRule): boolean =>
  groupBy.includes('model') || conditions.some(({ key }) => key === 'model');

function compile(kinds: readonly LiveRecords[]): Map<string, WorkspaceRules> {
  const all = kinds.flatMap((records) =>
    records
      .values()
      .flatMap(({ limits }) => limits)
      .toArray(),
  );
  const byWorkspace = Map.groupBy(all, ({ workspaceId }) => workspaceId);
  return new Map(
    byWorkspace.entries().map(([workspaceId, rules]) => {
      const of = (scope: 'api_key' | 'credential') =>
        Map.groupBy(
          rules.filter((rule) => rule.scope.of === scope),
          (rule) => (rule.scope.of === 'workspace' ? '' : rule.scope.id),
        );
      const ofWorkspace = rules.filter((rule) => rule.scope.of === 'workspace');
      const byModel = ofWorkspace.filter(dependsOnModel);
      return [workspaceId, { ofWorkspace, byModel, byKey: of('api_key'), byCredential: of('credential') }] as const;
    }),
  );
}
