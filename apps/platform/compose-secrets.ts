import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { createBackgroundLoop } from '#libs/kernel/background-loop.ts';
import { systemClock } from '#libs/kernel/clock.ts';
import { readVariable } from '#libs/kernel/read-env.ts';
import type { Part } from '#libs/kernel/lifecycle.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import { createSecretCache } from '#libs/secret-managers/secret-cache.ts';
import { createSecretManagers } from '#libs/secret-managers/secret-managers.ts';
import { createSend } from '#libs/secret-managers/send.ts';
import type { PlatformConfig } from './platform.ts';

/** Composes the secrets that are kept elsewhere: their managers, and a cache of the values that were fetched. */
export function composeSecrets(config: PlatformConfig, egress: Egress, logger: Logger) {
  const stopping = new AbortController();
  const secretManagers = createSecretManagers({
    send: createSend({ egress, signal: stopping.signal }),
    checkDestination: egress.check,
    readVariable,
    folder: config.SLUICE_SECRETS_FOLDER ?? null,
    kubernetes: {
      tokenFile: config.SLUICE_SECRETS_KUBERNETES_TOKEN,
      vaults: config.SLUICE_SECRETS_KUBERNETES_VAULTS,
    },
    now: () => systemClock.now(),
    monotonicMs: () => performance.now(),
  });
  const secretCache = createSecretCache({
    fetch: (reference) => secretManagers.fetch(reference),
    logger,
    ttlMs: config.SLUICE_SECRETS_TTL,
    staleMs: config.SLUICE_SECRETS_STALE,
    now: () => performance.now(),
    random: Math.random,
  });
  const secretParts: Part[] = [
    { name: 'secret managers', stop: () => stopping.abort() },
    createBackgroundLoop({ name: 'secret sweep', periodMs: 60_000, run: () => secretCache.sweep(), logger }),
  ];
  return { secretManagers, secretCache, secretParts };
}
