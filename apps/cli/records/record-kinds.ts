import type { AnyResource, Applied } from '#libs/records/define-resource.ts';
import kinds from '#apps/cli/record-kinds.json' with { type: 'json' };

/** A kind of record on the command line: the name of its commands, its path, and how records are addressed. */
export type RecordKind = {
  /** As in the files of `sluice apply`. */
  kind: string;
  command: string;
  many: string;
  path: string;
  address: 'slug' | 'id';
  canCreate: boolean;
  canUpdate: boolean;
  canDelete: boolean;
  /** A change creates a version, which is used only after it is published. */
  isPublishedOnRequest: boolean;
  /** How files describe the records; null if they cannot. `secrets` is the source of its pattern. */
  applied: (Pick<Applied, 'refersTo'> & { secrets: string | null; areCredentials: boolean }) | null;
};

/** Derives the kind for the command line from its definition. */
export const recordKindOf = ({ noun, names, path, slugs, applied, ...kind }: AnyResource): RecordKind => ({
  kind: noun,
  command: names.command ?? path.slice(path.lastIndexOf('/') + 1),
  many: names.many,
  path,
  address: slugs ? 'slug' : 'id',
  canCreate: kind.creation !== false,
  canUpdate: kind.changes !== false,
  canDelete: kind.removal !== false,
  isPublishedOnRequest: kind.versions?.publish === 'on_request',
  applied: applied
    ? {
        refersTo: applied.refersTo,
        secrets: applied.secrets?.source ?? null,
        areCredentials: applied.areCredentials === true,
      }
    : null,
});

/**
 * Every kind of record that the server has. `npm run generate` creates the list from their definitions, because loading
 * these would triple the start time of every command.
 */
export const recordKinds = kinds as readonly RecordKind[];

/** The kinds that files can describe, each after the kinds to which its records refer. */
export const appliedKinds: readonly RecordKind[] = afterTheirReferences(recordKinds);

function afterTheirReferences(all: readonly RecordKind[]): RecordKind[] {
  const seen = new Set<string>();
  const add = (kind: RecordKind | undefined): RecordKind[] => {
    if (!kind?.applied || seen.has(kind.kind)) return [];
    seen.add(kind.kind);
    const earlier = Object.keys(kind.applied.refersTo).flatMap((name) => add(all.find((each) => each.kind === name)));
    return [...earlier, kind];
  };
  return all.flatMap(add);
}
