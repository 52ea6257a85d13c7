import type { GuardrailCheck } from '#libs/contracts/configs/guardrail-checks.ts';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { fetchWhole } from '#libs/calls/upstream/egress/fetch-whole.ts';
import { createLazyFaults } from '#libs/calls/upstream/provider-faults.ts';
import { asRecord } from '#libs/calls/upstream/answers/usage.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { GuardrailSubject } from './texts/subject.ts';
import type { Finding } from './checks/text-checks.ts';

export type WebhookCheck = Extract<GuardrailCheck, { name: 'webhook' }>;

/** A verdict and a short explanation. */
const answerBytesMax = 262_144;
const dataBytesMax = 8_192;

// Headers that frame the request or name its connection.
const reserved: ReadonlySet<string> = new Set([
  'host',
  'connection',
  'content-length',
  'content-type',
  'transfer-encoding',
  'accept-encoding',
  'expect',
  'te',
  'trailer',
  'upgrade',
  'user-agent',
  'keep-alive',
]);

/** Throws invalid_request when the webhook cannot be called: its address is private, or a header is not allowed. */
export function prepareWebhook(egress: Pick<Egress, 'check'>, { parameters }: Pick<WebhookCheck, 'parameters'>): void {
  egress.check(new URL(parameters.webhookURL));
  const header = Object.keys(parameters.headers).find((name) => reserved.has(name.toLowerCase()));
  if (header === undefined) return;
  throw new GatewayError('invalid_request', 'invalid_value', `A webhook cannot set the header '${header}'.`, {
    param: 'headers',
  });
}

/**
 * Calls a webhook: a POST of the call, in Portkey's format, through the egress, without redirects. The answer is
 * `{"verdict": boolean, "data"?: any}` with a status of 200 to 299. Anything else is an error, and `failOnError`
 * decides whether it fails the check. Rejects only if the caller left (`call_aborted`).
 */
export async function askWebhook(
  egress: Egress,
  { parameters }: WebhookCheck,
  subject: GuardrailSubject,
  texts: { request: string; response: string },
): Promise<Finding> {
  const { webhookURL, headers, timeout, failOnError } = parameters;
  const failed = (explanation: string): Finding => ({ verdict: !failOnError, data: { failOnError, explanation } });
  const url = new URL(webhookURL);
  const timeouts = { connectMs: timeout, headersMs: timeout, idleMs: timeout, totalMs: timeout };
  const { signal, workspaceId } = subject;
  try {
    prepareWebhook(egress, { parameters });
    const { status, body } = await fetchWhole(
      {
        method: 'POST',
        origin: url.origin,
        path: url.pathname + url.search,
        headers: [
          'content-type',
          'application/json',
          'accept-encoding',
          'identity',
          'user-agent',
          'sluice',
          ...Object.entries(headers).flat(),
        ],
        body: payloadOf(subject, texts),
      },
      { egress, timeouts, signal, workspaceId, faults: createLazyFaults('The webhook', []), bytesMax: answerBytesMax },
    );
    if (status < 200 || status > 299) return failed(`The webhook returned status ${status}.`);
    const { verdict, data } = asRecord(JSON.parse(body.toString()));
    if (typeof verdict !== 'boolean') return failed('The answer of the webhook has no boolean "verdict".');
    const shown = data !== undefined && JSON.stringify(data).length <= dataBytesMax ? { data } : {};
    return { verdict, data: shown };
  } catch (error) {
    if (signal.aborted) throw error;
    if (error instanceof SyntaxError) return failed('The answer of the webhook is not valid JSON.');
    if (error instanceof GatewayError) return failed(error.message);
    throw error;
  }
}

/**
 * The call as JSON. The bytes of an answer are inserted unchanged, because it can be too large to be parsed and written
 * again here.
 */
function payloadOf(subject: GuardrailSubject, texts: { request: string; response: string }): Buffer {
  const { response, stream, provider, operation, metadata, request } = subject;
  const rest = JSON.stringify({ provider, requestType: operation, metadata: metadata ?? {} }).slice(1);
  const before = JSON.stringify({
    eventType: response === null ? 'beforeRequestHook' : 'afterRequestHook',
    request: { json: request, text: texts.request, isStreamingRequest: stream },
  }).slice(0, -1);
  if (response === null) return Buffer.from(`${before},"response":null,${rest}`);
  const after = JSON.stringify({ text: texts.response, statusCode: response.status }).slice(1);
  return Buffer.concat([Buffer.from(`${before},"response":{"json":`), response.body, Buffer.from(`,${after},${rest}`)]);
}
