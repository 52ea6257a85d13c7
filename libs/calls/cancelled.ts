import { GatewayError } from '#libs/kernel/errors.ts';

/** The client left, or the batch line must not continue. `label` names the target; null while it is not known. */
export const callAborted = (label: string | null): GatewayError =>
  new GatewayError(
    'unavailable',
    'call_aborted',
    `The call to ${label ?? 'the provider'} was cancelled before it ended.`,
  );

/** This process starts no more calls. */
export const shuttingDown = (): GatewayError =>
  new GatewayError('unavailable', 'shutting_down', 'This process is stopping. Send the request again.', {
    retryAfterMs: 1_000,
  });
