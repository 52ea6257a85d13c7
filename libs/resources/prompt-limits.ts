import { sql } from 'kysely';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';

/** Bounds of prompts, partials, collections and labels. */
export type PromptLimits = {
  /** The JSON of one version of a prompt or partial, in bytes. */
  versionBytesMax: number;
  /** Records of one of these kinds in a workspace. */
  recordsMax: number;
};

export const defaultPromptLimits: PromptLimits = { versionBytesMax: 262_144, recordsMax: 2_000 };

type Context = { unit: Pick<UnitOfWork, 'tx'>; workspaceId: string; promptLimits?: PromptLimits | undefined };

/** Throws conflict when the workspace has as many records of a kind as it may have. */
export async function refuseMore(
  { unit, workspaceId, promptLimits = defaultPromptLimits }: Context,
  kind: string,
  many: string,
): Promise<void> {
  const { recordsMax } = promptLimits;
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from resource
    where kind = ${kind} and workspace_id = ${workspaceId} and deleted_at is null`.execute(unit.tx);
  if ((rows[0]?.count ?? 0) < recordsMax) return;
  const message = `This workspace has ${recordsMax} ${many}, which is the limit. Delete some that are no longer used.`;
  throw new GatewayError('conflict', 'too_many_records', message);
}

/** Throws invalid_request for a version that is larger than a process should hold in memory for each prompt. */
export function refuseLargeVersion(version: object, { promptLimits = defaultPromptLimits }: Context): void {
  const bytes = Buffer.byteLength(JSON.stringify(version));
  if (bytes <= promptLimits.versionBytesMax) return;
  const message =
    `This version has ${bytes} bytes of JSON; at most ${promptLimits.versionBytesMax} are allowed. ` +
    'Pass long texts as variables.';
  throw new GatewayError('invalid_request', 'prompt_too_large', message, { param: 'string' });
}
