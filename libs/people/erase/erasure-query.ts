import { z } from 'zod';
import { text } from '#libs/contracts/scalars.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

/** Query members of a request that deletes a user. */
export const erasureQuery = {
  erase: z
    .enum(['true', 'false'])
    .optional()
    .describe(
      'true: also erase e-mail addresses, names and network addresses of the person from the log, the records and the ' +
        'request log. A worker does it within minutes.',
    ),
  reason: text({ min: 1, max: 500 }).optional().describe('Why the person is erased. It stays in the log.'),
};

/** Returns the reason of an erasure, or null if none was asked for. Throws invalid_request without a reason. */
export function readErasure({ erase, reason }: { erase?: unknown; reason?: unknown }): string | null {
  if (erase !== 'true') return null;
  if (typeof reason === 'string') return reason;
  const message = "Missing 'reason': say why the person is erased, without naming the person. The log keeps it.";
  throw new GatewayError('invalid_request', 'missing_required_parameter', message, { param: 'reason' });
}
