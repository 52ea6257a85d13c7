import { z } from 'zod';
import { byteSize, duration, readEnv, wholeNumber } from '#libs/kernel/read-env.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';
import { latencyForm, parseLatency } from './faults/latency.ts';

/** Variables of the simulator. */
export const SimulatorConfig = z.object({
  PORT: wholeNumber(8790, { min: 0, max: 65_535 }).describe('Port of the simulator. 0 picks a free one.'),
  HOST: z
    .string()
    .default('127.0.0.1')
    .describe('Address that it listens on. It checks no key by default, so do not expose it.'),
  LOG_LEVEL: z
    .enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'])
    .default('info')
    .describe('Minimum severity of log lines. `npm start` sets it to `SLUICE_LOG_LEVEL`.'),
  SIMULATOR_LATENCY: z
    .string()
    .default('0ms')
    .transform((text, context) => {
      const latency = parseLatency(text);
      if (latency !== undefined) return latency;
      context.addIssue(`must have a form such as ${latencyForm}`);
      return z.NEVER;
    })
    .describe('Time before each answer: `20ms`, or a distribution like `uniform:10ms:50ms`.'),
  SIMULATOR_TOKENS_PER_SECOND: wholeNumber(0, { min: 0, max: 1_000_000 }).describe(
    'Speed of streams; real models write 20 to 200 tokens per second. 0 sends a stream in one piece.',
  ),
  SIMULATOR_KEY: z
    .string()
    .transform((key) => new Secret(key))
    .optional()
    .describe('The only API key that it accepts. Without it, every key works.'),
  SIMULATOR_REQUESTS_PER_MINUTE: wholeNumber(0, { min: 0, max: 100_000_000 }).describe(
    'Requests per minute before it answers 429. 0 disables the limit.',
  ),
  SIMULATOR_CALLS_MAX: wholeNumber(0, { min: 0, max: 1_000_000 }).describe(
    'Calls in flight before it answers 429. 0 disables the limit.',
  ),
  SIMULATOR_COUNT_CALLS: z
    .stringbool()
    .default(false)
    .meta({ fallback: 'false' })
    .describe('Whether it counts calls by `user`, or else by their content, so that a test can find repeated ones.'),
  SIMULATOR_COUNTED_KEYS_MAX: wholeNumber(100_000, { min: 1, max: 5_000_000 }).describe(
    'How many such keys it counts, about 100 bytes each. Raise it to count every line of a larger batch.',
  ),
  SIMULATOR_BODY_MAX: byteSize('64MiB', { minBytes: 1, maxBytes: 268_435_456 }).describe('Largest request body.'),
  SIMULATOR_DRIP_INTERVAL: duration('1s', { minMs: 1, maxMs: 60_000 }).describe(
    'Time between two bytes of the fault `slow-drip`.',
  ),
  SIMULATOR_TRAINING: duration('10s', { minMs: 10, maxMs: 3_600_000 }).describe('How long a fine-tuning job takes.'),
  SIMULATOR_DRAIN: duration('2s', { minMs: 0, maxMs: 60_000 }).describe(
    'How long running answers can take to finish after SIGTERM.',
  ),
});

const schema = SimulatorConfig.transform((env) => ({
  logLevel: env.LOG_LEVEL,
  simulator: {
    port: env.PORT,
    host: env.HOST,
    latency: env.SIMULATOR_LATENCY,
    tokensPerSecond: env.SIMULATOR_TOKENS_PER_SECOND,
    requiredKey: env.SIMULATOR_KEY,
    requestsPerMinute: env.SIMULATOR_REQUESTS_PER_MINUTE,
    callsMax: env.SIMULATOR_CALLS_MAX,
    countCalls: env.SIMULATOR_COUNT_CALLS,
    countedKeysMax: env.SIMULATOR_COUNTED_KEYS_MAX,
    bodyMaxBytes: env.SIMULATOR_BODY_MAX,
    dripIntervalMs: env.SIMULATOR_DRIP_INTERVAL,
    trainingMs: env.SIMULATOR_TRAINING,
    drainMs: env.SIMULATOR_DRAIN,
  },
}));

/** Reads the simulator's configuration from the environment. Throws ConfigurationError that lists all invalid variables. */
export function readConfig(env: NodeJS.ProcessEnv = process.env): z.output<typeof schema> {
  return readEnv(schema, env);
}
