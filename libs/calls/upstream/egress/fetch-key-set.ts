import type { JSONWebKeySet } from 'jose';
import { quickTimeouts } from '#libs/calls/timeouts.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Egress } from './egress.ts';
import { fetchWhole } from './fetch-whole.ts';
import { createLazyFaults } from '../provider-faults.ts';

const bytesMax = 262_144;
const keysMax = 100;
/** For the server and the connection together, because a call can wait for the keys. */
const timeouts = { ...quickTimeouts, totalMs: 5_000 };

/**
 * Fetches the JSON Web Key Set at a URL, like a provider's answer: within 5 s, at most 256 KiB and 100 keys, no
 * redirects. `workspaceId`: whose share of the connections it uses. Throws GatewayError, `jwks_unusable` for an answer
 * that is not a key set.
 */
export async function fetchKeySet(
  { egress, signal }: { egress: Egress; signal?: AbortSignal },
  uri: string,
  workspaceId: string | undefined,
): Promise<JSONWebKeySet> {
  const url = new URL(uri);
  egress.check(url);
  const { status, body } = await fetchWhole(
    {
      method: 'GET',
      origin: url.origin,
      path: url.pathname + url.search,
      headers: ['accept', 'application/json', 'accept-encoding', 'identity', 'user-agent', 'sluice'],
      body: null,
    },
    {
      egress,
      timeouts,
      signal: signal ?? new AbortController().signal,
      workspaceId,
      faults: createLazyFaults('The key server', []),
      bytesMax,
    },
  );
  if (status !== 200) throw unusable(`returned status ${status}`);
  const set = parseObject(body);
  if (!Array.isArray(set?.['keys'])) throw unusable('did not return a JSON Web Key Set');
  if (set['keys'].length > keysMax) throw unusable(`returned more than ${keysMax} keys`);
  return set as unknown as JSONWebKeySet;
}

function parseObject(body: Buffer): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(body.toString());
    return typeof value === 'object' ? (value as Record<string, unknown> | null) : null;
  } catch {
    return null;
  }
}

const unusable = (what: string): GatewayError =>
  new GatewayError('provider_failed', 'jwks_unusable', `The key server ${what}.`);
