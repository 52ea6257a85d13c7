import { estimateUsage } from '#libs/calls/admission.ts';
import type { ForwardRequest, Target } from '#libs/calls/call.ts';
import type { Units, Usage, UsageDetails } from '#libs/prices/usage.ts';

/**
 * The maximum usage of a call with a stored credential beyond its own text: stored conversations, files and searches
 * are not in its body, and one answer can take several rounds.
 */
const tokensMax = 10_000_000;
/** The same for a call with a credential of its caller, who may have sent it to a server that answers any number. */
const callersTokensMax = 100_000;
/** Providers count differently from the estimate, by at most this factor. */
const factor = 4;
/** The estimated output of a call without a limit, if its report is not plausible. */
const outputTokensDefault = 1_000;

const secondsMax = 1_000_000;
const searchesMax = 10_000;

type Detail = Exclude<keyof UsageDetails, 'serviceTier' | 'searches' | 'isImplausible'>;
const inputDetails: readonly Detail[] = [
  'cacheWriteTokens',
  'cacheWriteHourTokens',
  'audioInputTokens',
  'cachedAudioTokens',
  'imageInputTokens',
];
const outputDetails: readonly Detail[] = ['audioOutputTokens', 'imageOutputTokens'];

/** The call that usage was reported for. */
export type UsedBy = {
  request: Pick<ForwardRequest, 'body' | 'edits' | 'operation' | 'parsed'>;
  target: Pick<Target, 'secretOrigin'>;
};

/**
 * Returns the usage that a provider reported, or an estimate that is marked as `isImplausible` if the request cannot have
 * used so much: one answer must not use up the budget of everybody in the workspace. No detail exceeds the sum that it is
 * part of. Nearly always returns the same object.
 */
export function plausibleUsage(reported: Usage, { request, target }: UsedBy): Usage {
  const usage = areDetailsParts(reported) ? reported : withPartsOnly(reported);
  const { inputTokens, outputTokens } = usage;
  const max = target.secretOrigin === null ? callersTokensMax : tokensMax;
  if (inputTokens <= max && outputTokens <= max) return usage;
  const estimate = estimateUsage(request);
  const bound = estimate.outputTokensMax ?? outputTokensDefault * estimate.choices;
  const isPossible =
    inputTokens <= Math.max(max, factor * estimate.inputTokens) && outputTokens <= Math.max(max, factor * bound);
  if (isPossible) return usage;
  return {
    inputTokens: Math.min(inputTokens, estimate.inputTokens),
    outputTokens: Math.min(outputTokens, bound),
    cachedTokens: 0,
    reasoningTokens: 0,
    isImplausible: true,
  };
}

/** The same for usage that is not counted in tokens. */
export function plausibleUnits(units: Units): Units {
  const { seconds = 0, searches = 0 } = units;
  if (seconds <= secondsMax && searches <= searchesMax) return units;
  return {
    ...units,
    ...(units.seconds === undefined ? {} : { seconds: Math.min(seconds, secondsMax) }),
    ...(units.searches === undefined ? {} : { searches: Math.min(searches, searchesMax) }),
  };
}

function areDetailsParts(usage: Usage): boolean {
  const { inputTokens, cachedTokens, outputTokens, reasoningTokens } = usage;
  if (cachedTokens > inputTokens || reasoningTokens > outputTokens) return false;
  for (const name of inputDetails) if ((usage[name] ?? 0) > inputTokens) return false;
  for (const name of outputDetails) if ((usage[name] ?? 0) > outputTokens) return false;
  return true;
}

function withPartsOnly(usage: Usage): Usage {
  const { inputTokens, cachedTokens, outputTokens, reasoningTokens } = usage;
  const parts: Usage = {
    ...usage,
    cachedTokens: Math.min(cachedTokens, inputTokens),
    reasoningTokens: Math.min(reasoningTokens, outputTokens),
  };
  for (const name of inputDetails) if (parts[name] !== undefined) parts[name] = Math.min(parts[name], inputTokens);
  for (const name of outputDetails) if (parts[name] !== undefined) parts[name] = Math.min(parts[name], outputTokens);
  return parts;
}
