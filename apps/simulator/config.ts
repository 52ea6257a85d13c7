import { z } from 'zod';
import { byteSize, duration, readEnv, wholeNumber } from '#libs/kernel/read-env.ts';
import { Secret } from '#libs/kernel/secret.ts';
import { latencyForm, parseLatency } from './latency.ts';

const schema = z
  .object({
    PORT: wholeNumber(8790, { min: 0, max: 65_535 }),
    // Loopback: the simulator checks no key by default and is not meant for the open network.
    HOST: z.string().default('127.0.0.1'),
    LOG_LEVEL: z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']).default('info'),
    SIMULATOR_LATENCY: z
      .string()
      .default('0ms')
      .transform((text, context) => {
        const latency = parseLatency(text);
        if (latency !== undefined) return latency;
        context.addIssue(`must be such as ${latencyForm}`);
        return z.NEVER;
      }),
    // 0 sends a stream at once; real models write 20 to 200 tokens per second.
    SIMULATOR_TOKENS_PER_SECOND: wholeNumber(0, { min: 0, max: 1_000_000 }),
    SIMULATOR_KEY: z
      .string()
      .transform((key) => new Secret(key))
      .optional(),
    SIMULATOR_REQUESTS_PER_MINUTE: wholeNumber(0, { min: 0, max: 100_000_000 }),
    SIMULATOR_COUNT_CALLS: z.stringbool().default(false),
    // About 100 bytes each: 100,000 keys are 10 MB. Raise it to count every line of a larger batch.
    SIMULATOR_COUNTED_KEYS_MAX: wholeNumber(100_000, { min: 1, max: 5_000_000 }),
    // Larger than the largest body that the gateway accepts.
    SIMULATOR_BODY_MAX: byteSize('64MiB', { minBytes: 1, maxBytes: 268_435_456 }),
    SIMULATOR_DRIP_INTERVAL: duration('1s', { minMs: 1, maxMs: 60_000 }),
    // Long enough to watch a fine-tuning job, short enough to wait for it.
    SIMULATOR_TRAINING: duration('10s', { minMs: 10, maxMs: 3_600_000 }),
    // How long answers in flight may take after the signal to stop.
    SIMULATOR_DRAIN: duration('2s', { minMs: 0, maxMs: 60_000 }),
  })
  .transform((env) => ({
    logLevel: env.LOG_LEVEL,
    simulator: {
      port: env.PORT,
      host: env.HOST,
      latency: env.SIMULATOR_LATENCY,
      tokensPerSecond: env.SIMULATOR_TOKENS_PER_SECOND,
      requiredKey: env.SIMULATOR_KEY,
      requestsPerMinute: env.SIMULATOR_REQUESTS_PER_MINUTE,
      countCalls: env.SIMULATOR_COUNT_CALLS,
      countedKeysMax: env.SIMULATOR_COUNTED_KEYS_MAX,
      bodyMaxBytes: env.SIMULATOR_BODY_MAX,
      dripIntervalMs: env.SIMULATOR_DRIP_INTERVAL,
      trainingMs: env.SIMULATOR_TRAINING,
      drainMs: env.SIMULATOR_DRAIN,
    },
  }));

/** The simulator's configuration from the environment. Throws ConfigurationError, naming every unusable variable. */
export function readConfig(env: NodeJS.ProcessEnv = process.env): z.output<typeof schema> {
  return readEnv(schema, env);
}
