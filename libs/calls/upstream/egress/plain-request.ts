import type { IncomingHttpHeaders } from 'node:http';
import type { Readable } from 'node:stream';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { decodeOpenAiError } from '#libs/providers/openai-error.ts';
import type { OutboundRequest, Provider, ProviderError } from '#libs/providers/provider.ts';
import type { Target } from '#libs/calls/call.ts';
import { mergeTimeouts, type Timeouts } from '#libs/calls/timeouts.ts';
import { authorize } from '../authorize.ts';
import { checkOrigin, getSecrets } from '../credential.ts';
import type { Egress } from './egress.ts';
import { readError } from '../error-body.ts';
import { fetchWhole } from './fetch-whole.ts';
import { createLazyFaults } from '../provider-faults.ts';

export type PlainRequest = {
  method: OutboundRequest['method'];
  /** The path below the version segment, including the query: `/fine_tuning/jobs?limit=20`. */
  path: string;
  /** Flat (name, value, …), in addition to the headers that address and authorise the request. */
  headers?: readonly string[];
  /** A stream is destroyed with the request. It needs a content-length header. */
  body?: Uint8Array | Readable | null;
  signal: AbortSignal;
  timeouts?: Partial<Timeouts>;
  /** The maximum size of the answer. Default 4 MiB. */
  bytesMax?: number;
};

/**
 * `json` parses the body, throws when it is not JSON, and removes the credential. `error` is the message of an answer
 * with a status of 400 or more, scrubbed.
 */
export type PlainAnswer = {
  status: number;
  headers: IncomingHttpHeaders;
  body: Buffer;
  json: () => unknown;
  error: ProviderError | null;
};

type Deps = {
  egress: Egress;
  clock: Clock;
  providers: (id: string) => Provider | undefined;
  /** The timeouts of the process. */
  timeouts: Timeouts;
};

const answerBytesMax = 4_194_304;

/**
 * Makes one request in OpenAI's format outside the translated operations (files, fine-tuning): one attempt, no retries,
 * with the same rules for egress, credential and origin as every call. Returns the whole answer, whatever its status.
 * Throws GatewayError: unsupported_operation, invalid_request, provider_failed, provider_timeout, or `call_aborted`.
 */
export async function plainRequest(
  { egress, clock, providers, timeouts }: Deps,
  { method, path, headers = [], body = null, signal, timeouts: own, bytesMax = answerBytesMax }: PlainRequest,
  target: Target,
): Promise<PlainAnswer> {
  const provider = providers(target.provider);
  if (!provider?.fineTuning) {
    throw new GatewayError(
      'unsupported_operation',
      'unsupported_operation',
      `The provider ${target.provider} does not support fine-tuning.`,
    );
  }
  egress.check(target.baseUrl);
  const secrets = getSecrets(target);
  const faults = createLazyFaults(target.label, secrets);
  const address = provider.fineTuning(path, target);
  checkOrigin(target, address.origin);
  const sent = [...address.headers, ...headers, 'accept-encoding', 'identity', 'user-agent', 'sluice'];
  const outbound = { method, origin: address.origin, path: address.path, headers: sent, body };
  const fetching = {
    egress,
    timeouts: mergeTimeouts(timeouts, own),
    signal,
    faults,
    workspaceId: target.workspaceId,
  };
  // Only headers are added. A provider that signs bodies cannot sign a stream.
  await authorize(provider, { ...outbound, body: null }, target, { egress, clock, signal, faults, secrets });
  const answer = await fetchWhole(outbound, { ...fetching, bytesMax });
  const { status, body: bytes } = answer;
  const decode = () => decodeOpenAiError(status, bytes.toString());
  const error = status < 400 ? null : readError(status, bytes, decode, secrets);
  return { ...answer, json: () => withoutSecrets(JSON.parse(answer.body.toString()), secrets), error };
}

// A shorter key (`simulator`, for a server that needs none) is not a secret, and can be part of names.
const secretLengthMin = 16;

/**
 * Returns a JSON value in which no text contains one of the secrets. Compared after parsing, so that no escape sequence
 * can hide one.
 */
function withoutSecrets(value: unknown, secrets: readonly string[]): unknown {
  const hidden = secrets.filter((secret) => secret.length >= secretLengthMin);
  const text = JSON.stringify(value);
  if (!hidden.some((secret) => text.includes(secret))) return value;
  return JSON.parse(hidden.reduce((clean, secret) => clean.replaceAll(secret, '[redacted]'), text));
}
