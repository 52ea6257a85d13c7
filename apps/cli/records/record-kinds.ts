import type { AnyResource } from '#libs/records/define-resource.ts';
import kinds from '#apps/cli/record-kinds.json' with { type: 'json' };

/** A kind of record as the command line knows it: the name of its commands, its path, and what addresses one. */
export type RecordKind = {
  /** As in files of `sluice apply`. */
  kind: string;
  command: string;
  many: string;
  path: string;
  address: 'slug' | 'id';
  canCreate: boolean;
  canUpdate: boolean;
  canDelete: boolean;
};

/** What the command line knows of a kind, from its definition. */
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
 * Every kind of record that the server has. `npm run generate` makes the list from their definitions, because loading these
 * would triple the start time of every command.
 */
export const recordKinds = kinds as readonly RecordKind[];
