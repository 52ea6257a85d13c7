import type { Request } from 'express';
import type { Transaction } from 'kysely';
import type { z } from 'zod';
import type { Database } from '#libs/database/schema.ts';
import type { Caller } from '#libs/http/caller.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import { defineResource, type ResourceDefinition } from '#libs/records/define-resource.ts';
import type * as kit from '#libs/records/kit.ts';
import type { SecretManagers } from '#libs/secret-managers/secret-managers.ts';
import type { PromptLimits } from './prompts/prompt-limits.ts';

/** The dependencies for storing this platform's records. */
export type KindDeps = kit.StoreDeps & {
  snapshot: { findApiKey?(digest: string): { caller: Pick<Caller, 'keyId' | 'workspaceId'> } | undefined };
  /** Throws for a URL that can never be called (libs/calls/upstream/egress/egress.ts `check`). */
  checkDestination: (url: URL) => void;
  /** Validates secret references. Absent: they are stored without validation. */
  secretManagers?: Pick<SecretManagers, 'check'>;
  /** The scopes of all routes, which can be given to a key. */
  scopes: () => ReadonlySet<string>;
  /** Default: those of libs/resources/prompts/prompt-limits.ts. */
  promptLimits?: PromptLimits | undefined;
  /** Absent: not limited. */
  recordLimits?: RecordLimits | undefined;
  people: PeopleOptions;
  /** Sets the weight of a workspace's batches in the transaction that changes the workspace. */
  setBatchWeight: (tx: Transaction<Database>, workspaceId: string, weight: number) => Promise<void>;
  /** The maximum number of policies of each kind in a workspace. Default 100. */
  policiesMax?: number;
  /** Whether the operator has set a folder for events. Default false. */
  siemFolder?: boolean;
  /** A virtual key that every new workspace gets. */
  virtualKeyOfAll?: KeptVirtualKey | undefined;
};

export type CheckContext<Data> = kit.CheckContext<Data, KindDeps>;
export type FollowUp<Data, Subject> = kit.FollowUp<Data, Subject, KindDeps>;

/** Infers the types of a definition in one place. */
export const defineKind = <Shape extends z.ZodRawShape, Data extends object, Entry = never>(
  definition: ResourceDefinition<Shape, Data, Entry, KindDeps>,
): ResourceDefinition<Shape, Data, Entry, KindDeps> => defineResource(definition);

/** The limit of most kinds of records, for `creation.limit`. */
export const recordsLimit = ({ recordLimits }: KindDeps) => ({
  max: recordLimits?.recordsMax ?? Number.POSITIVE_INFINITY,
  variable: 'SLUICE_RECORDS_MAX',
});

/** Limits for the records that every process keeps in memory, per owner: a workspace or the organisation. */
type RecordLimits = {
  /** The maximum number of records of one kind. */
  recordsMax: number;
  apiKeysMax: number;
  /** The bytes of memory that the cached records of a workspace can take up, all kinds together. */
  memoryBytesMax: number;
};

/**
 * A virtual key for a server that belongs to the installation. If that server does not check keys, `key` can be any text.
 */
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
  /** The maximum number of pending invites. */
  invitesMax: number;
  /** The maximum per workspace. */
  membersMax: number;
  inviteTtlMs: number;
  /** Returns the link for an invite with this token. */
  inviteLink: (token: string) => string;
  /**
   * Called before the token of an invite is looked up. Throws to refuse; call the function that it returns if the token is
   * correct.
   */
  slowGuesses: (request: Request) => () => void;
};
