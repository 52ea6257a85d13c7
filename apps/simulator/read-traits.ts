import { parseFaultName, type Fault } from './faults.ts';
import { parseLatency, type Latency } from './latency.ts';
import type { Behaviour } from './model/generate.ts';

/** What a model's name says about how it is simulated. */
export type Traits = {
  manner: Behaviour['manner'];
  /** Exactly so many tokens an answer (`+200tok`), so that a load test knows its sizes. */
  tokens: number | undefined;
  latency: Latency | undefined;
  tokensPerSecond: number | undefined;
  fault: Fault | 'unknown' | undefined;
};

const tokensMax = 100_000;
// The names in use are few; a caller who makes up names must not fill the memory.
const cachedNamesMax = 1_000;
const cachedNameLengthMax = 256;
const cache = new Map<string, Traits>();

/**
 * Reads a model's name: `[anything/]NAME[+OPTION]…`, where NAME may be sim-echo, sim-reflect or a fault (faults.ts)
 * and an OPTION is a latency (`+50ms`, `+lognormal:300ms:2s`), a speed (`+40tps`) or a length (`+200tok`).
 * Options stand in the name because it is the one thing that passes through every gateway and batch file.
 */
export function readTraits(model: string): Traits {
  const known = cache.get(model);
  if (known !== undefined) return known;
  const traits = parse(model);
  if (model.length > cachedNameLengthMax) return traits;
  if (cache.size >= cachedNamesMax) cache.clear();
  cache.set(model, traits);
  return traits;
}

function parse(model: string): Traits {
  const [name = '', ...options] = model.slice(model.lastIndexOf('/') + 1).split('+');
  const traits: Traits = {
    manner: name === 'sim-echo' ? 'echo' : name === 'sim-reflect' ? 'reflect' : 'write',
    tokens: undefined,
    latency: undefined,
    tokensPerSecond: undefined,
    fault: parseFaultName(name),
  };
  for (const option of options) {
    const amount = /^(\d{1,6})(tok|tps)$/.exec(option);
    if (amount?.[2] === 'tok') traits.tokens = Math.min(Number(amount[1]), tokensMax);
    else if (amount?.[2] === 'tps') traits.tokensPerSecond = Number(amount[1]);
    else traits.latency = parseLatency(option) ?? traits.latency;
  }
  return traits;
}
