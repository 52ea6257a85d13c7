import { GatewayError } from '#libs/kernel/errors.ts';

/** Bounds of prompts, partials, collections and labels. */
export type PromptLimits = {
  /** The JSON of one version of a prompt or partial, in bytes. */
  versionBytesMax: number;
  /** Records of one of these kinds in a workspace. */
  recordsMax: number;
};

/** For processes that create no prompts, and for tests. */
const noPromptLimits: PromptLimits = { versionBytesMax: Infinity, recordsMax: Infinity };

type Context = { promptLimits?: PromptLimits | undefined };

/** For `countLimit`. */
export const promptsLimit = ({ promptLimits = noPromptLimits }: Context) => ({
  max: promptLimits.recordsMax,
  variable: 'SLUICE_PROMPTS_MAX',
});

/** Throws invalid_request for a version that is larger than a process should hold in memory for each prompt. */
export function refuseLargeVersion(version: object, { promptLimits = noPromptLimits }: Context): void {
  const bytes = Buffer.byteLength(JSON.stringify(version));
  if (bytes <= promptLimits.versionBytesMax) return;
  const message =
    `This version has ${bytes} bytes of JSON; at most ${promptLimits.versionBytesMax} are allowed. ` +
    'Pass long texts as variables.';
  throw new GatewayError('invalid_request', 'prompt_too_large', message, { param: 'string' });
}
