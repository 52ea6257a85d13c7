import { GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { FetchedSecret } from './fetched-secret.ts';
import { SecretError, type SecretFault } from './secret-error.ts';
import type { LiveSecretReference } from './secret-manager.ts';

export type FetchOptions = {
  fetch: (reference: LiveSecretReference) => Promise<FetchedSecret>;
  logger: Logger;
  /** How long a fetched secret is used before it must be fetched again. */
  ttlMs: number;
  /** Monotonic, in milliseconds. */
  now: () => number;
  /** Returns a number from 0 to 1, so that processes do not all fetch together. */
  random: () => number;
};

/** The result of the last fetches of one secret. */
export class SecretEntry {
  readonly reference: LiveSecretReference;
  secret: FetchedSecret | null = null;
  /** From this time on, a new value is fetched while this one is used. */
  refreshAtMs = 0;
  expiresAtMs = 0;
  /** Why the last fetch failed. */
  fault: SecretError | null = null;
  failures = 0;
  /** No fetch begins before this time. */
  retryAtMs = 0;
  renewedAtMs = Number.NEGATIVE_INFINITY;
  flight: Promise<FetchedSecret> | null = null;

  constructor(reference: LiveSecretReference) {
    this.reference = reference;
  }
}

/** A file is read again after this time, so that a new one is used soon. */
const fileTtlMs = 2_000;
const retryBaseMs = 1_000;
const retryMaxMs = 30_000;
/** The maximum of concurrent fetches for one workspace, or the organisation. Each needs memory for an answer. */
const flightsMax = 128;

/**
 * Fetches secrets and writes the results into their entries: the value and how long it is used, or the failure and when
 * the next fetch can begin. `onChange`: the value has changed.
 */
export function createSecretFetches(options: FetchOptions & { onChange: (entry: SecretEntry) => void }) {
  const { fetch, logger, ttlMs, now, random, onChange } = options;
  const counts: Record<SecretFault | 'ok', number> = { ok: 0, unavailable: 0, denied: 0, not_found: 0, malformed: 0 };
  const flights = new Map<string, number>();

  const succeeded = (entry: SecretEntry, secret: FetchedSecret): void => {
    const { id, slug, managerType } = entry.reference;
    const lifeMs = managerType === 'file' ? Math.min(fileTtlMs, ttlMs) : ttlMs;
    const at = now();
    if (entry.failures > 0) logger.info({ secret_reference_id: id, slug }, 'secret can be fetched again');
    Object.assign(entry, {
      secret,
      refreshAtMs: at + lifeMs * (0.75 + 0.2 * random()),
      expiresAtMs: at + lifeMs,
      fault: null,
      failures: 0,
      retryAtMs: 0,
    });
    counts.ok += 1;
    onChange(entry);
  };

  const failed = (entry: SecretEntry, fault: SecretError): void => {
    const { id, slug } = entry.reference;
    if (entry.failures === 0) {
      const reason = { code: fault.code, reason: fault.message };
      logger.warn({ secret_reference_id: id, slug, ...reason }, 'secret cannot be fetched');
    }
    entry.failures += 1;
    entry.fault = fault;
    const longestMs = Math.min(retryMaxMs, retryBaseMs * 2 ** (entry.failures - 1));
    entry.retryAtMs = now() + longestMs * (0.5 + 0.5 * random());
    counts[fault.fault] += 1;
    // The previous value can still be correct.
    if (fault.kind === 'unavailable') return;
    entry.secret = null;
    onChange(entry);
  };

  /** Starts a fetch, or joins the one that is running. Rejects with SecretError. */
  const start = (entry: SecretEntry): Promise<FetchedSecret> => {
    if (entry.flight !== null) return entry.flight;
    const { ownerId, slug } = entry.reference;
    const running = flights.get(ownerId) ?? 0;
    if (running >= flightsMax) {
      const what = `cannot be fetched because ${flightsMax} other secrets are being fetched. Try again shortly`;
      return Promise.reject(new SecretError('unavailable', slug, what));
    }
    flights.set(ownerId, running + 1);
    const flight = fetch(entry.reference)
      .then(
        (secret) => {
          succeeded(entry, secret);
          return secret;
        },
        (error: unknown) => {
          const fault = asFault(error, slug);
          failed(entry, fault);
          throw fault;
        },
      )
      .finally(() => {
        entry.flight = null;
        const left = (flights.get(ownerId) ?? 1) - 1;
        if (left === 0) flights.delete(ownerId);
        else flights.set(ownerId, left);
      });
    entry.flight = flight;
    return flight;
  };

  return { start, counts: counts as Readonly<typeof counts> };
}

/** A refusal of the reference itself (its form, an option that the operator disabled) fails its calls. */
function asFault(error: unknown, slug: string): SecretError {
  if (error instanceof SecretError) return error;
  if (error instanceof GatewayError && error.kind === 'invalid_request') {
    return new SecretError('malformed', slug, `cannot be used: ${error.message.replace(/\.$/, '')}`, error);
  }
  return new SecretError('unavailable', slug, 'cannot be fetched because of an error in the gateway', error);
}
