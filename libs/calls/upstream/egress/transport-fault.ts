import { GatewayError } from '#libs/kernel/errors.ts';
import { shuttingDown } from '#libs/calls/cancelled.ts';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import type { Faults } from '../provider-faults.ts';

/** Turns an error of undici or of the system into that of the call. `answering`: the head of the answer has arrived. */
export function transportFault(
  error: unknown,
  answering: boolean,
  timeouts: Timeouts,
  faults: () => Faults,
): GatewayError {
  if (error instanceof GatewayError) return error;
  const code = error instanceof Error && 'code' in error ? String(error.code) : '';
  if (code === 'UND_ERR_CONNECT_TIMEOUT') return faults().connectTimeout(timeouts.connectMs);
  if (code === 'UND_ERR_HEADERS_TIMEOUT') return faults().headersTimeout(timeouts.headersMs);
  if (code === 'UND_ERR_BODY_TIMEOUT') return faults().idleTimeout(timeouts.idleMs);
  if (code === 'UND_ERR_DESTROYED' || code === 'UND_ERR_CLOSED') return shuttingDown();
  if (code === 'UND_ERR_INVALID_ARG') {
    return new GatewayError(
      'invalid_request',
      'invalid_header',
      'The request could not be sent: its credential, path or a header contains characters that HTTP does not allow.',
    );
  }
  if (code === 'UND_ERR_HEADERS_OVERFLOW' || (error instanceof Error && error.name === 'HTTPParserError')) {
    return faults().invalid('sent an invalid HTTP response');
  }
  if (answering) return faults().truncated(error);
  return isLostConnection(code) ? faults().connectionLost(error) : faults().unreachable(error);
}

/** The connection was open, so the provider may have received the request. */
function isLostConnection(code: string): boolean {
  return code === 'UND_ERR_SOCKET' || code === 'ECONNRESET' || code === 'EPIPE';
}
