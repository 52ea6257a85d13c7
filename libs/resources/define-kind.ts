import type { Request } from 'express';
import type { z } from 'zod';
import type { Caller } from '#libs/http/caller.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { defineResource, type ResourceDefinition } from '#libs/records/define-resource.ts';
import type * as kit from '#libs/records/kit.ts';
import type { SecretManagers } from '#libs/secret-managers/secret-managers.ts';
import type { PromptLimits } from './prompts/prompt-limits.ts';

/** What the records of this platform are kept with. */
export type KindDeps = kit.StoreDeps & {
  snapshot: { findApiKey?(digest: string): { caller: Pick<Caller, 'keyId' | 'workspaceId'> } | undefined };
  /** Throws for a URL that could never be called (libs/calls/upstream/egress/egress.ts `check`). */
  checkDestination: (url: URL) => void;
  /** Judges secret references. Absent: they are stored without. */
  secretManagers?: Pick<SecretManagers, 'check'>;
  /** Those of all routes, which a key can be given. */
  scopes: () => ReadonlySet<string>;
  /** Default: those of libs/resources/prompts/prompt-limits.ts. */
  promptLimits?: PromptLimits | undefined;
  /** Absent: not limited. */
  recordLimits?: RecordLimits | undefined;
  people: PeopleOptions;
  /** Policies of each kind that a workspace may have. Default 100. */
  policiesMax?: number;
  /** A virtual key that every new workspace gets. */
  virtualKeyOfAll?: KeptVirtualKey | undefined;
};

export type CheckContext<Data> = kit.CheckContext<Data, KindDeps>;
export type FollowUp<Data, Subject> = kit.FollowUp<Data, Subject, KindDeps>;

/** Names the types of a definition once, where it is made. */
export const defineKind = <Shape extends z.ZodRawShape, Data extends object, Entry = never>(
  definition: ResourceDefinition<Shape, Data, Entry, KindDeps>,
): ResourceDefinition<Shape, Data, Entry, KindDeps> => defineResource(definition);

/** The limit of most kinds of records, for `countLimit`. */
export const recordsLimit = ({ recordLimits }: KindDeps) => ({
  max: recordLimits?.recordsMax ?? Number.POSITIVE_INFINITY,
  variable: 'SLUICE_RECORDS_MAX',
});

/** Bounds of the records that every process keeps in memory, by their owner: a workspace or the organisation. */
type RecordLimits = {
  /** Records of one kind. */
  recordsMax: number;
  apiKeysMax: number;
  /** Bytes of memory that the cached records of a workspace take up, all kinds together. */
  memoryBytesMax: number;
};

/** A virtual key for a server that belongs to the installation. Any text will do as `key` where the server checks none. */
export type KeptVirtualKey = {
  slug: string;
  provider: string;
  name: string;
  note: string;
  customHost: string;
  key: Secret;
};

export type PeopleOptions = {
  usersMax: number;
  /** Those that are pending. */
  invitesMax: number;
  /** Of one workspace. */
  membersMax: number;
  inviteTtlMs: number;
  /** The link of an invite with this token. */
  inviteLink: (token: string) => string;
  /** Called before the token of an invite is looked up. Throws to refuse; what it returns is called for a right token. */
  slowGuesses: (request: Request) => () => void;
};
