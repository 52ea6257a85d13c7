import { GatewayError } from '#libs/kernel/errors.ts';

/** Limits for prompts, partials, collections and labels. */
export type PromptLimits = {
  /** The maximum size in bytes of one version of a prompt or partial, as JSON. */
  versionBytesMax: number;
  /** The maximum number of records of one of these kinds in a workspace. */
  recordsMax: number;
};

/** For processes that do not create prompts, and for tests. */
const noPromptLimits: PromptLimits = { versionBytesMax: Infinity, recordsMax: Infinity };

type Context = { promptLimits?: PromptLimits | undefined };

/** For `creation.limit`. */
export const promptsLimit = ({ promptLimits = noPromptLimits }: Context) => ({
  max: promptLimits.recordsMax,
  variable: 'SLUICE_PROMPTS_MAX',
});

/** Throws invalid_request for a version that is too large for every process to hold in memory. */
export function refuseLargeVersion(version: object, { promptLimits = noPromptLimits }: Context): void {
  const bytes = Buffer.byteLength(JSON.stringify(version));
  if (bytes <= promptLimits.versionBytesMax) return;
  const message =
    `This version has ${bytes} bytes of JSON; at most ${promptLimits.versionBytesMax} are allowed. ` +
    'Pass long texts as variables.';
  throw new GatewayError('invalid_request', 'prompt_too_large', message, { param: 'string' });
}
