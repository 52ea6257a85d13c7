import { anthropic } from '../anthropic/index.ts';
import { wantsAnyJsonObject } from '../chat/json-in-words.ts';
import { unused, type Call, type Provider } from '../provider.ts';
import { addressFrom } from '../url-parts.ts';
import { decodeConverse, readConverseDetails } from './decode.ts';
import { decodeEmbeddings, encodeEmbeddingsBody } from './embeddings.ts';
import { encodeConverseBody } from './encode.ts';
import { decodeBedrockError } from './errors.ts';
import { openEventFraming } from './framing.ts';
import { assertRegion, awsDomain } from './region.ts';
import { signRequest } from './sign.ts';
import { bedrockMessages } from './messages.ts';
import { toBedrockRequest } from './request.ts';
import { openConverseStream } from './stream.ts';
import { toRecord } from '../turns/json-value.ts';
import { readTurns } from '../turns/read-turns.ts';
import { mediaUrls } from '../turns/turn-request.ts';

/**
 * Amazon Bedrock: chat by the Converse API, embeddings by InvokeModel. A target has a Bedrock API key, sent as a bearer token,
 * or AWS credentials that sign each request. Models are not listed, because another AWS service does that.
 */
export const bedrock: Provider = {
  id: 'bedrock',
  semanticName: 'aws.bedrock',
  aliases: ['aws-bedrock'],
  settings: {
    aws_region: {},
    aws_access_key_id: { mappable: true },
    aws_secret_access_key: { secret: true, authenticates: true },
    aws_session_token: { secret: true },
    aws_role_arn: { authenticates: true },
    aws_external_id: {},
    aws_auth_type: { unused: true },
    aws_s3_bucket: { unused: true },
    aws_bedrock_model: { unused: true },
    ...unused(anthropic.settings),
  },
  address: 'https://bedrock-runtime.{aws_region}.amazonaws.com',
  baseUrlOf: addressFrom('aws_region', (region) => {
    assertRegion(region);
    return `https://bedrock-runtime.${region}.${awsDomain(region)}`;
  }),
  needsCredential: true,
  credentialHeaders: ['x-amz-'],
  clientHeaders: ['anthropic-beta'],
  requestIdHeaders: ['x-amzn-requestid'],
  operations: {
    chat: {
      encode: (call, upstream) => {
        const { model, body, dropped } = encodeConverseBody(call);
        return { ...toBedrockRequest(upstream, model, call.stream ? 'converse-stream' : 'converse', body), dropped };
      },
      asksForJsonInWords: wantsAnyJsonObject,
      resourcesOf: (call: Call) => mediaUrls(readTurns(call)),
      decode: decodeConverse,
      detailsOf: (body) => readConverseDetails(toRecord(body)),
      openStream: openConverseStream,
      openFraming: openEventFraming,
      decodeError: decodeBedrockError,
    },
    messages: bedrockMessages,
    embeddings: {
      encode: (call, upstream) => {
        const { model, body, dropped } = encodeEmbeddingsBody(call);
        return { ...toBedrockRequest(upstream, model, 'invoke', body), dropped };
      },
      decode: decodeEmbeddings,
      decodeError: decodeBedrockError,
    },
  },
  authorize: async (request, upstream, tools) => {
    if (!upstream.apiKey) await signRequest(request, upstream, tools);
  },
};
