import { pino, type DestinationStream, type Logger as PinoLogger } from 'pino';
import { createLogDestination } from './log-destination.ts';
import { scrub } from './scrub.ts';

export type Logger = PinoLogger;

/**
 * JSON lines on stdout. One line per request or job at its end, data in fields, no bodies and no prompts.
 * Known secret fields are redacted by path; error texts are scrubbed by shape, because a library's message may quote
 * a URL or a header.
 */
export function createLogger(
  options: { name: string; level: string },
  destination: DestinationStream = createLogDestination(),
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
          if (!isErrorLike(error)) return scrub(String(error));
          const code = 'code' in error ? String(error.code) : undefined;
          const name = 'name' in error ? String(error.name) : undefined;
          const stack = 'stack' in error ? scrub(String(error.stack), [], 8_000) : '';
          return { name, code, message: scrub(error.message), stack };
        },
      },
    },
    destination,
  );
}

/** Also the plain objects that a library makes of its errors, such as pg-boss. */
function isErrorLike(error: unknown): error is { message: string } {
  return typeof error === 'object' && error !== null && 'message' in error && typeof error.message === 'string';
}
