import { once } from 'node:events';
import type { Egress } from './egress/egress.ts';
import { transportFault } from './egress/transport-fault.ts';
import { createLazyFaults } from './provider-faults.ts';

const totalMs = 15_000;
const timeouts = { connectMs: 10_000, headersMs: totalMs, idleMs: totalMs, totalMs };

/**
 * Sends bytes over a new TLS connection, for protocols without answers. Resolves when the receiver has closed the
 * connection in order, which it does after it has read everything. `label` names the receiver in errors. Throws
 * GatewayError otherwise, after 15 seconds at the latest, or if the address is not allowed.
 */
export async function sendOverTls(
  { egress, label, signal }: { egress: Egress; label: string; signal: AbortSignal },
  { url, bytes, workspaceId }: { url: URL; bytes: Buffer; workspaceId: string },
): Promise<void> {
  egress.check(url);
  const timeout = AbortSignal.timeout(totalMs);
  const faults = createLazyFaults(label, []);
  try {
    const socket = await egress.connectTls(url, workspaceId, AbortSignal.any([signal, timeout]));
    const closed = once(socket, 'close');
    socket.resume();
    socket.end(bytes);
    await closed;
  } catch (error) {
    throw timeout.aborted ? faults().totalTimeout(totalMs) : transportFault(error, false, timeouts, faults);
  }
}
