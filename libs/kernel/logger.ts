import { pino, type DestinationStream, type Logger as PinoLogger } from 'pino';
import { scrub } from './scrub.ts';

export type Logger = PinoLogger;

/**
 * JSON lines on stdout. One line per request or job at its end, data in fields, no bodies and no prompts.
 * Known secret fields are redacted by path; error texts are scrubbed by shape, because a library's message may quote
 * a URL or a header.
 */
export function createLogger(
  options: { name: string; level: string },
  destination: DestinationStream = pino.destination({ sync: false, minLength: 0 }),
): Logger {
  return pino(
    {
      name: options.name,
      level: options.level,
      base: { process: options.name, pid: process.pid },
      timestamp: pino.stdTimeFunctions.isoTime,
      redact: {
        paths: [
          'authorization',
          'password',
          'secret',
          'api_key',
          'key',
          '*.authorization',
          '*.password',
          '*.secret',
          '*.api_key',
          '*.key',
          'headers',
        ],
        censor: '[redacted]',
      },
      serializers: {
        err: (error: unknown) => {
          if (!(error instanceof Error)) return scrub(String(error));
          const code = 'code' in error ? String(error.code) : undefined;
          return { name: error.name, code, message: scrub(error.message), stack: scrub(error.stack ?? '', [], 8_000) };
        },
      },
    },
    destination,
  );
}
