import type { AnyResource } from '#libs/records/define-resource.ts';
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
};

/** Derives the kind for the command line from its definition. */
export const recordKindOf = ({ noun, names, path, slugs, ...kind }: AnyResource): RecordKind => ({
  kind: noun,
  command: names.command ?? path.slice(path.lastIndexOf('/') + 1),
  many: names.many,
  path,
  address: slugs ? 'slug' : 'id',
  canCreate: kind.creation !== false,
  canUpdate: kind.changes !== false,
  canDelete: kind.removal !== false,
});

/**
 * Every kind of record that the server has. `npm run generate` creates the list from their definitions, because loading
 * these would triple the start time of every command.
 */
export const recordKinds = kinds as readonly RecordKind[];
