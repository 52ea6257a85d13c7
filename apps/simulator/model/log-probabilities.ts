import { createRandom, hashText } from './hash.ts';

export type RatedToken = { token: string; logprob: number };

const rareTokens = [' and', ' the', '.', ' of', ' a', '\n', ',', ' in', ' is', ' that'];

/** Plausible log probabilities of one token of an answer and of `count` alternatives, likeliest (the token itself) first. */
export function rateToken(token: string, position: number, count: number): RatedToken & { alternatives: RatedToken[] } {
  const random = createRandom(hashText(token, position));
  const logprob = -round(random() * 1.5);
  const alternatives: RatedToken[] = [];
  let last = logprob;
  for (let rank = 0; rank < count; rank++) {
    alternatives.push(rank === 0 ? { token, logprob } : { token: otherToken(token, rank), logprob: last });
    last = round(last - 0.5 - random());
  }
  return { token, logprob, alternatives };
}

function otherToken(token: string, rank: number): string {
  const candidate = rareTokens[rank % rareTokens.length] ?? '';
  return rank < rareTokens.length && candidate !== token ? candidate : `${candidate}${rank}`;
}

function round(value: number): number {
  return Math.round(value * 1e6) / 1e6;
}
