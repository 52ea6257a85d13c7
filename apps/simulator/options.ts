import type { Clock } from '#libs/kernel/clock.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { Secret } from '#libs/kernel/logging/secret.ts';
import type { Latency } from './faults/latency.ts';
import type { FindWire, Received } from './wire/wire-format.ts';

export type SimulatorOptions = {
  /** 0 selects any free port. */
  port: number;
  host: string;
  latency: Latency;
  /** The speed of a streamed answer; 0 sends it immediately. */
  tokensPerSecond: number;
  /** The only accepted key; absent: any key except `invalid`. */
  requiredKey: Secret | undefined;
  /** A limit that is enforced for each key; 0: no limit. */
  requestsPerMinute: number;
  /** Calls in flight beyond which it rejects more; absent or 0: no limit. */
  callsMax?: number;
  /**
   * Whether GET /stats counts the calls of each `user` or prompt; a single request can enable this with x-simulator-count.
   */
  countCalls: boolean;
  countedKeysMax: number;
  bodyMaxBytes: number;
  /** The interval between the bytes of the fault slow-drip. */
  dripIntervalMs: number;
  /** How long a fine-tuning job takes by default. */
  trainingMs: number;
  /** How long `stop` waits for answers in flight before it closes their connections. */
  drainMs: number;
  /**
   * Throws Refusal for a request that the provider would refuse. Tests of our adapters set it (test/conformance/strict);
   * without it, the simulator reads only the members that it needs.
   */
  check?: ((route: string, received: Received) => void | Promise<void>) | undefined;
  /** Finds the APIs of further providers. Tests of our adapters set it (test/conformance/formats). */
  findOther?: FindWire | undefined;
  clock: Clock;
  logger: Logger | undefined;
};
