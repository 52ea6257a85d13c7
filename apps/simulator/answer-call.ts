import type { IncomingHttpHeaders } from 'node:http';
import { applyFault } from './faults/apply-fault.ts';
import type { Exchange } from './exchange.ts';
import { parseFaultName, type Fault, type Occasion } from './faults/faults.ts';
import { drawLatencyMs, latencyForm, parseLatency, type Latency } from './faults/latency.ts';
import { createRandom, hashText, hexOf, mixHash } from './model/hash.ts';
import type { SimulatorOptions } from './options.ts';
import { readTraits } from './read-traits.ts';
import { sendBody, sendFrames } from './send-answer.ts';
import type { Stats } from './stats.ts';
import { Refusal, type Call, type WireFormat } from './wire/wire-format.ts';

type Asked = {
  call: Call;
  wire: WireFormat;
  exchange: Exchange;
  credential: string;
  headers: IncomingHttpHeaders;
  /** Known before any byte is sent, because a header contains it. */
  timing: { processingMs: number };
};

// The maximum number of prompts whose calls are counted for temporary faults; more than any batch has in flight.
const promptsMax = 200_000;

/** Answers decoded calls. The model's name and the x-simulator-* headers determine the behaviour, latency and fault. */
export function createCallAnswerer({ options, stats }: { options: SimulatorOptions; stats: Stats }) {
  const random = createRandom(1); // Latencies vary, but in the same way in every run.
  const attempts = createAttemptCounter({ promptsMax });
  return {
    /**
     * Sends the answer: in this tick if there is no latency; otherwise returns a promise. Throws Refusal, before any byte is
     * sent, for a fault or latency that does not exist.
     */
    answer({ call, wire, exchange, credential, headers, timing }: Asked): void | Promise<void> {
      const traits = readTraits(call.model);
      const faultHeader = faultNameOf(headers);
      const fault = knownFault(
        faultHeader === undefined ? traits.fault : parseFaultName(faultHeader),
        faultHeader ?? call.model,
      );
      const latency = latencyOf(headers) ?? traits.latency ?? options.latency;
      if (options.countCalls || headers['x-simulator-count'] !== undefined) {
        stats.called(call.user ?? hexOf(call.hash, 16));
      }
      const attempt = fault && attempts.strike(fault.occasion, promptKey(call, faultHeader));
      const tokensPerSecond = traits.tokensPerSecond ?? options.tokensPerSecond;
      const { behaviour } = traits;
      const respond = (): void | Promise<void> => {
        if (fault !== undefined && attempt !== undefined) {
          const { dripIntervalMs, clock } = options;
          const faulty = {
            exchange,
            call,
            wire,
            behaviour,
            tokensPerSecond,
            attempt,
            credential,
            dripIntervalMs,
            clock,
          };
          return applyFault(fault.effect, faulty);
        }
        if (!call.stream) return sendBody(exchange, call.body(behaviour), call);
        const { contentType } = call.form ?? wire.form;
        return sendFrames(exchange, call.frames(behaviour), { contentType, tokensPerSecond });
      };
      timing.processingMs = drawLatencyMs(latency, random);
      if (timing.processingMs === 0) return respond();
      return exchange.pause(timing.processingMs).then((open) => (open ? respond() : undefined));
    },
    resetAttempts: attempts.reset,
  };
}

/** The prefix can be left out in the header: `x-simulator-fault: 429` is sim-fault-429. */
function faultNameOf(headers: IncomingHttpHeaders): string | undefined {
  const header = headers['x-simulator-fault'];
  if (header === undefined) return undefined;
  const name = String(header).trim();
  return name.startsWith('sim-') ? name : `sim-fault-${name}`;
}

function knownFault(fault: Fault | 'unknown' | undefined, name: string): Fault | undefined {
  if (fault !== 'unknown') return fault;
  const message = `The simulator has no fault '${name}'. GET / lists the available faults.`;
  throw new Refusal({ status: 404, message, type: 'invalid_request_error', param: 'model', code: 'model_not_found' });
}

function latencyOf(headers: IncomingHttpHeaders): Latency | undefined {
  const header = headers['x-simulator-latency'];
  if (header === undefined) return undefined;
  const latency = parseLatency(String(header));
  if (latency !== undefined) return latency;
  throw new Refusal({
    status: 400,
    message: `x-simulator-latency must have a form such as ${latencyForm}.`,
    code: 'invalid_value',
  });
}

/** Attempts are counted per prompt, `user` (so that a test can distinguish its lines) and fault. */
function promptKey({ hash, user }: Call, faultHeader: string | undefined): number {
  return user === undefined && faultHeader === undefined ? hash : hashText(`${user ?? ''}\n${faultHeader ?? ''}`, hash);
}

/**
 * Decides for each call whether a fault happens, and counts the calls of each prompt if necessary. Beyond `promptsMax`
 * prompts, the counts of the oldest are dropped, so those prompts start again.
 * @testOnly
 */
export function createAttemptCounter({ promptsMax }: { promptsMax: number }) {
  const calls = new Map<number, number>();
  const count = (prompt: number): number => {
    const attempt = (calls.get(prompt) ?? 0) + 1;
    calls.delete(prompt);
    if (calls.size >= promptsMax) {
      const oldest = calls.keys().next();
      if (oldest.done !== true) calls.delete(oldest.value);
    }
    calls.set(prompt, attempt);
    return attempt;
  };
  return {
    /** The number of this call of the prompt, from 1, if the fault happens; undefined if the call succeeds. */
    strike(occasion: Occasion, prompt: number): number | undefined {
      switch (occasion.type) {
        case 'always':
          return 1;
        case 'first': {
          const attempt = count(prompt);
          return attempt <= occasion.attempts ? attempt : undefined;
        }
        case 'flaky': {
          // For odd calls, the result is drawn from the prompt and the call's number; even calls always succeed.
          const attempt = count(prompt);
          return attempt % 2 === 1 && draw(prompt, attempt) < occasion.percent ? attempt : undefined;
        }
        case 'storm': {
          const attempt = count(prompt);
          return draw(prompt, attempt) < occasion.percent ? attempt : undefined;
        }
      }
    },
    reset: () => calls.clear(),
  };
}

/** 0 to 99. */
function draw(prompt: number, attempt: number): number {
  return mixHash(prompt, attempt) % 100;
}
