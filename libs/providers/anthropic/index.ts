import type { IncomingHttpHeaders } from 'node:http';
import { wantsAnyJsonObject } from '../chat/json-in-words.ts';
import { messageBody, relayMessages } from '../messages/relay-messages.ts';
import { operationPaths, type Call, type OutboundRequest, type Provider, type Upstream } from '../provider.ts';
import { partsOf } from '../url-parts.ts';
import { encodeClaudeBody } from './encode.ts';
import { decodeAnthropicError } from './errors.ts';
import { openClaudeStream } from './stream.ts';
import { decodeClaudeMessage, decodeModels, readClaudeDetails } from './decode.ts';
import { toRecord } from '../turns/json-value.ts';

// Claude on Vertex AI has the same format (with `anthropic_version` in the body instead of `model`), so that adapter uses
// `encodeClaudeBody` (./encode.ts), `decodeClaudeMessage` (./decode.ts), `openClaudeStream` (./stream.ts) and
// `decodeAnthropicError` (./errors.ts). It returns the URLs of `mediaUrls` (../chat-messages.ts) from `resourcesOf`, so that
// images are sent as bytes.

const address = new URL('https://api.anthropic.com/v1');
const version = '2023-06-01';
/** More models than exist, so that one page has all. */
const modelsMax = 1_000;

/** Anthropic's Messages API (platform.claude.com/docs, "Messages"). */
export const anthropic: Provider = {
  id: 'anthropic',
  settings: { anthropic_version: {}, anthropic_beta: {} },
  address: address.href,
  baseUrlOf: () => address,
  needsCredential: true,
  credentialHeaders: ['x-api-key'],
  clientHeaders: ['anthropic-beta', 'anthropic-version'],
  requestIdHeaders: ['request-id'],
  readRateHeaders,
  operations: {
    chat: {
      encode: encodeChat,
      asksForJsonInWords: wantsAnyJsonObject,
      decode: decodeClaudeMessage,
      detailsOf: (body) => readClaudeDetails(toRecord(toRecord(body)['usage'])),
      openStream: openClaudeStream,
      decodeError: decodeAnthropicError,
    },
    messages: relayMessages((call, upstream) => sendMessages(call, upstream, messageBody(call))),
    count_tokens: relayMessages((call, upstream) => sendMessages(call, upstream, messageBody(call))),
    models: {
      encode: (call, upstream) => {
        const { origin, folder } = partsOf(upstream.baseUrl);
        const path = `${folder}/models?limit=${modelsMax}`;
        return { method: 'GET', origin, path, headers: headersOf(call, upstream), body: null };
      },
      decode: decodeModels,
      decodeError: decodeAnthropicError,
    },
  },
};

function encodeChat(call: Call, upstream: Upstream): OutboundRequest {
  const { model, body, dropped } = encodeClaudeBody(call);
  const sent = call.stream ? { model, ...body, stream: true } : { model, ...body };
  return { ...sendMessages(call, upstream, Buffer.from(JSON.stringify(sent))), dropped };
}

function sendMessages(call: Call, upstream: Upstream, body: Uint8Array): OutboundRequest {
  const { origin, folder, search } = partsOf(upstream.baseUrl);
  const headers = headersOf(call, upstream);
  headers.push('content-type', 'application/json');
  return { method: 'POST', origin, path: folder + messagePath(call) + search, headers, body };
}

/** Chat is translated to messages. */
const messagePath = ({ operation }: Call): string =>
  operation === 'count_tokens' ? operationPaths.count_tokens : operationPaths.messages;

/** The client's version overrides the virtual key's; the betas of both are sent. */
function headersOf(call: Call, { apiKey, settings }: Upstream): string[] {
  const headers = ['accept', call.stream ? 'text/event-stream' : 'application/json'];
  if (apiKey) headers.push('x-api-key', apiKey.reveal());
  headers.push('anthropic-version', call.headers['anthropic-version'] ?? settings['anthropic_version'] ?? version);
  const betas = [settings['anthropic_beta'], call.headers['anthropic-beta']].filter(Boolean).join(',');
  if (betas !== '') headers.push('anthropic-beta', betas);
  return headers;
}

const rateKinds = ['requests', 'tokens', 'input-tokens', 'output-tokens'] as const;

const date = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)$/;
const count = /^\d{1,12}$/;

/**
 * Returns Anthropic's rate limits (platform.claude.com/docs, "Rate limits") as OpenAI's headers: the times at which the
 * limits are full again become durations, from the answer's own date, so that the clock of this machine is not used.
 * Headers that are incomplete or make no sense are left out.
 */
function readRateHeaders(headers: IncomingHttpHeaders): Record<string, string> {
  const found: Record<string, string> = {};
  const nowMs = Date.parse(headers.date ?? '');
  for (const kind of rateKinds) {
    const [limit, remaining, reset] = (['limit', 'remaining', 'reset'] as const).map((what) => {
      const value = headers[`anthropic-ratelimit-${kind}-${what}`];
      return typeof value === 'string' ? value : '';
    }) as [string, string, string];
    const resetMs = date.test(reset) ? Date.parse(reset) - nowMs : Number.NaN;
    if (!count.test(limit) || !count.test(remaining) || Number.isNaN(resetMs)) continue;
    found[`x-ratelimit-limit-${kind}`] = limit;
    found[`x-ratelimit-remaining-${kind}`] = remaining;
    found[`x-ratelimit-reset-${kind}`] = `${Math.max(0, resetMs)}ms`;
  }
  return found;
}
