import { messageBody, modelOfMessages, relayMessages } from '../messages/relay-messages.ts';
import type { Framing, ProviderError, StreamEvent } from '../provider.ts';
import { decodeBedrockError, decodeException } from './errors.ts';
import { openEventFraming } from './framing.ts';
import { canBeClaude } from './models.ts';
import { toBedrockRequest } from './request.ts';
import { parseJson, toRecord } from '../turns/json-value.ts';

const claudeVersion = '"bedrock-2023-05-31"';

/**
 * Claude on Bedrock has Anthropic's API as the body of InvokeModel (AWS documentation, "Anthropic Claude Messages API"): the
 * model is in the path, whether it streams is its action, and betas are in the body.
 */
export const bedrockMessages = relayMessages(
  (call, upstream) => {
    const betas = call.headers['anthropic-beta'];
    const body = messageBody(call, {
      model: undefined,
      stream: undefined,
      anthropic_version: claudeVersion,
      ...(betas === undefined ? {} : { anthropic_beta: JSON.stringify(betas.split(',').map((beta) => beta.trim())) }),
    });
    const action = call.stream ? 'invoke-with-response-stream' : 'invoke';
    return toBedrockRequest(upstream, String(modelOfMessages(call)), action, body);
  },
  { openFraming: openChunkFraming, decodeError, serves: canBeClaude },
);

/** Each event of the stream contains one of Anthropic's, as `{bytes: base64}`. An exception is an error. */
function openChunkFraming(onEvent: (event: StreamEvent) => void, eventBytesMax: number): Framing {
  return openEventFraming(({ event, data }) => {
    const { bytes } = toRecord(parseJson(data));
    if (event === 'chunk' && typeof bytes === 'string')
      return onEvent({ data: Buffer.from(bytes, 'base64').toString() });
    onEvent({ data: JSON.stringify({ type: 'error', exception: event, data }) });
  }, eventBytesMax);
}

function decodeError(status: number, body: string): ProviderError {
  const { exception, data } = toRecord(parseJson(body));
  return typeof exception === 'string' && typeof data === 'string'
    ? decodeException(exception, data)
    : decodeBedrockError(status, body);
}
