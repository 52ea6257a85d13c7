import { GatewayError } from '#libs/kernel/errors.ts';

/**
 * Why a secret is not available. `unavailable`: the manager does not answer, or not now. `denied`: it refuses this
 * process, either intentionally or because a token has expired. `not_found` and `malformed`: it has answered, and only
 * a change of the secret, the reference or the mapping will help.
 */
export type SecretFault = 'unavailable' | 'denied' | 'not_found' | 'malformed';

const codes: Record<SecretFault, string> = {
  unavailable: 'secret_unavailable',
  denied: 'secret_access_denied',
  not_found: 'secret_not_found',
  malformed: 'secret_malformed',
};

/** The error of a call whose secret is not available. It names the reference, and never the secret. */
export class SecretError extends GatewayError {
  readonly fault: SecretFault;
  /** The slug of the reference. */
  readonly slug: string;

  /** `what` follows the name of the reference: "does not answer". */
  constructor(fault: SecretFault, slug: string, what: string, cause?: unknown) {
    const isPassing = fault === 'unavailable' || fault === 'denied';
    super(isPassing ? 'unavailable' : 'dependency_failed', codes[fault], `The secret reference '${slug}' ${what}.`, {
      ...(isPassing ? { retryAfterMs: 2_000 } : {}),
      cause,
    });
    this.fault = fault;
    this.slug = slug;
  }
}
