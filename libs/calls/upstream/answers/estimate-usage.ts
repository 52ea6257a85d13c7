import type { Usage } from '#libs/prices/usage.ts';

/** Bytes per token of English text with the usual tokenisers. */
const charsPerToken = 4;
/** An image or a recording in a body is one long text without a space. No word has this length. */
const mediaBytesMin = 4_096;
/** Tokens of an image of ordinary size at the large providers. */
const tokensPerMedia = 1_000;
/** Smaller bodies contain no media worth counting. In larger ones, at most this many texts are examined. */
const smallBytesMax = 16_384;
const textsMax = 10_000;

/**
 * Estimates the usage of a stream from the length of the request and the received text, for a stream whose provider did
 * not report it or that was cut off before.
 */
export const estimateStreamed = (sent: Buffer, chars: number): Usage => ({
  inputTokens: sentTokens(sent),
  cachedTokens: 0,
  outputTokens: Math.ceil(chars / charsPerToken),
  reasoningTokens: 0,
});

/** Estimates the tokens of a request from its length, without reading it. Images and recordings count as ordinary ones. */
export function sentTokens(sent: Buffer): number {
  let textBytes = sent.length;
  let media = 0;
  if (sent.length > smallBytesMax) {
    let from = 0;
    for (let texts = 0; texts < textsMax; texts += 1) {
      const quote = sent.indexOf(0x22, from);
      const end = quote === -1 ? sent.length : quote;
      if (end - from >= mediaBytesMin && !sent.subarray(from, from + mediaBytesMin).includes(0x20)) {
        media += 1;
        textBytes -= end - from;
      }
      if (quote === -1) break;
      from = quote + 1;
    }
  }
  return Math.ceil(textBytes / charsPerToken) + media * tokensPerMedia;
}
