import { parseFaultName, type Fault } from './faults/faults.ts';
import { parseLatency, type Latency } from './faults/latency.ts';
import type { Behaviour } from './model/generate.ts';

/** The traits of the simulation that a model's name specifies. */
export type Traits = {
  behaviour: Behaviour;
  latency: Latency | undefined;
  tokensPerSecond: number | undefined;
  fault: Fault | 'unknown' | undefined;
  /** How long a fine-tuning job of this model takes (`+training:2s`). */
  trainingMs: number | undefined;
  /** The size of generated audio (`+3000000bytes`). */
  sizeBytes: number | undefined;
};

const tokensMax = 100_000;
// Few names are in use, and a caller that invents names must not fill the memory.
const cachedNamesMax = 1_000;
const cachedNameLengthMax = 256;
const cache = new Map<string, Traits>();

/**
 * Reads a model's name: `[anything/]NAME[+OPTION]…`, where NAME can be sim-echo, sim-reflect, sim-agent or a fault (faults.ts) and
 * an OPTION is a latency (`+50ms`, `+lognormal:300ms:2s`), a speed (`+40tps`), a length (`+200tok`), the time of a
 * fine-tuning job (`+training:2s`) or a property of the answer: `+think`, `+cached`, `+preamble`, `+refuse`. `__` is
 * the same as `+`, for providers whose names cannot contain `+`. Options are part of the name because only the name
 * passes through every gateway and batch file.
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

const manners: ReadonlyMap<string, Behaviour['manner']> = new Map([
  ['sim-echo', 'echo'],
  ['sim-reflect', 'reflect'],
  ['sim-agent', 'agent'],
]);

function parse(model: string): Traits {
  const [name = '', ...options] = model.slice(model.lastIndexOf('/') + 1).split(/\+|__/);
  const behaviour: Behaviour = {
    manner: manners.get(name) ?? 'write',
    tokens: undefined,
    think: options.includes('think'),
    cached: options.includes('cached'),
    preamble: options.includes('preamble'),
    refuse: options.includes('refuse'),
  };
  const traits: Traits = {
    behaviour,
    latency: undefined,
    tokensPerSecond: undefined,
    fault: parseFaultName(name),
    trainingMs: undefined,
    sizeBytes: undefined,
  };
  for (const option of options) {
    const amount = /^(\d{1,6})(tok|tps)$/.exec(option);
    const training = option.startsWith('training:') ? parseLatency(option.slice('training:'.length)) : undefined;
    if (amount?.[2] === 'tok') behaviour.tokens = Math.min(Number(amount[1]), tokensMax);
    else if (amount?.[2] === 'tps') traits.tokensPerSecond = Number(amount[1]);
    else if (/^\d{1,9}bytes$/.test(option)) traits.sizeBytes = Number.parseInt(option, 10);
    else if (training?.type === 'fixed') traits.trainingMs = training.ms;
    else traits.latency = parseLatency(option) ?? traits.latency;
  }
  return traits;
}
