/**
 * The tokens of a call that have another price than plain text. All of them are also counted in its input or output
 * tokens.
 */
export type UsageDetails = {
  /** Written to the provider's prompt cache, including those for an hour. */
  cacheWriteTokens?: number;
  /** Written to be cached for an hour instead of five minutes. */
  cacheWriteHourTokens?: number;
  /** Audio and images in the input. Those read from the prompt cache also count as cached tokens. */
  audioInputTokens?: number;
  cachedAudioTokens?: number;
  imageInputTokens?: number;
  audioOutputTokens?: number;
  imageOutputTokens?: number;
  /** Web searches that the model made. */
  searches?: number;
  /** The class of service that the provider reports, such as `flex`. */
  serviceTier?: string;
  /** The provider reported more than the request can have used, and these figures are an estimate. */
  isImplausible?: true;
};

/** Input tokens include cached ones, output tokens include reasoning. */
export type Usage = UsageDetails & {
  inputTokens: number;
  cachedTokens: number;
  outputTokens: number;
  reasoningTokens: number;
};

/** The use of a call that is not counted in tokens. Absent means not known, not 0. */
export type Units = {
  /** The length of transcribed audio. */
  seconds?: number;
  /** The length of spoken text. */
  characters?: number;
  /** `kind` is quality and size, such as `hd 1024x1024`. */
  images?: { count: number; kind: string };
  /** The number of ranked lists of documents. */
  searches?: number;
};

/** Classes of service at the listed price, by the names that providers have for them. */
export const standardTiers: ReadonlySet<string> = new Set(['default', 'standard', 'auto', 'on_demand', 'scale']);

const tierLengthMax = 50;

/**
 * The part of usage for a class of service that a provider reports. Empty for one at the listed price, and for an
 * unknown value.
 */
export const readServiceTier = (tier: unknown): Pick<UsageDetails, 'serviceTier'> =>
  typeof tier === 'string' && tier.length <= tierLengthMax && !standardTiers.has(tier) ? { serviceTier: tier } : {};
