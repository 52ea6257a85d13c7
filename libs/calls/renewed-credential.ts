import { GatewayError } from '#libs/kernel/errors.ts';

/**
 * Whether the provider may not know the credential, because it was rotated since it was fetched. AWS answers 403 for an
 * access key that it does not know.
 */
export const isRefusedCredential = (status: number): boolean => status === 401 || status === 403;

/** For a request that cannot be repeated here, because its body was a stream: its sender repeats it. */
export const rotatedCredential = (label: string): GatewayError =>
  new GatewayError(
    'unavailable',
    'credential_rotated',
    `The credential of ${label} was rotated a moment ago. The new one is used from now on: send the request again.`,
    { retryAfterMs: 100 },
  );
