import { GatewayError } from '#libs/kernel/errors.ts';
import { memberValue } from '#libs/kernel/json/json-members.ts';
import { anthropic } from '../anthropic/index.ts';
import { asNumber, toRecord, toRecords } from '../turns/json-value.ts';
import { encodeBody } from '../openai-compatible.ts';
import { decodeOpenAiError } from '../openai-error.ts';
import { relayResponses } from '../responses/relay-responses.ts';
import { openai } from '../openai/index.ts';
import {
  operationPaths,
  unused,
  type Call,
  type OutboundRequest,
  type Provider,
  type Translation,
  type Upstream,
} from '../provider.ts';
import { addressFrom, partsOf } from '../url-parts.ts';
import { createEntraTokens, readEntraClient } from './entra-token.ts';

/** The newest dated version that is not a preview (learn.microsoft.com, "Azure OpenAI API version lifecycle"). */
const defaultVersion = '2024-10-21';

const tokenOf = createEntraTokens();

const translation: Translation = {
  encode,
  decodeError: decodeOpenAiError,
  passThrough: true,
};

/**
 * Azure OpenAI: OpenAI's format at other URLs (AZURE-1). With a dated version the deployment is part of the path; with
 * version `v1` it is the model. Content filter results and the first chunk without choices pass unchanged.
 */
export const azure: Provider = {
  id: 'azure',
  semanticName: 'azure.ai.openai',
  aliases: ['azure-openai'],
  settings: {
    azure_resource_name: { destination: true, alias: 'resource_name', portkeyName: 'resourceName' },
    azure_deployment_id: { alias: 'deployment_id', portkeyName: 'deploymentName', ofDeployment: 'name' },
    azure_api_version: { alias: 'api_version', portkeyName: 'apiVersion', ofDeployment: 'detail' },
    azure_auth_mode: { authenticates: true },
    azure_ad_token: { secret: true, authenticates: true },
    azure_entra_tenant_id: {},
    azure_entra_client_id: {},
    azure_entra_client_secret: { secret: true, authenticates: true },
    azure_entra_scope: {},
    azure_model_name: { unused: true },
    azure_managed_client_id: { unused: true },
    azure_workload_client_id: { unused: true },
    azure_foundry_url: { destination: true, unused: true },
    azure_endpoint_name: { destination: true, unused: true },
    ...unused(openai.settings),
    ...unused(anthropic.settings),
  },
  address: 'https://{azure_resource_name}.openai.azure.com/openai',
  baseUrlOf: addressFrom('azure_resource_name', (resource) => {
    if (/^[A-Za-z0-9][A-Za-z0-9-]{0,62}$/.test(resource))
      return `https://${resource.toLowerCase()}.openai.azure.com/openai`;
    throw invalid('azure_resource_name', 'expected the name of a resource: letters, digits and hyphens');
  }),
  needsCredential: true,
  credentialHeaders: ['api-key', 'ocp-apim-subscription-key'],
  clientHeaders: [],
  requestIdHeaders: ['x-request-id', 'apim-request-id'],
  notes: ['Its models reject JSON mode unless the word “JSON” is in a message.'],
  operations: {
    chat: translation,
    completions: translation,
    embeddings: translation,
    models: { ...translation, decode: decodeModels },
    responses: relayResponses(encode),
  },
  authorize: async (request, upstream, tools) => {
    const client = upstream.secrets['azure_ad_token'] ? null : readEntraClient(upstream);
    if (client) request.headers.push('authorization', `Bearer ${await tokenOf(client, tools)}`);
  },
};

function encode(call: Call, upstream: Upstream): OutboundRequest {
  const { settings, baseUrl } = upstream;
  const { origin, folder } = partsOf(baseUrl);
  const version = settings['azure_api_version'] ?? defaultVersion;
  const deployment = settings['azure_deployment_id'];
  const isFirst = version === 'v1';
  const isResponse = call.operation === 'responses';
  if (!isFirst && !/^(\d{4}-\d{2}-\d{2}(-preview)?|preview|latest)$/.test(version)) {
    throw invalid('azure_api_version', 'expected v1, or a version such as 2024-10-21 or 2025-04-01-preview');
  }
  const isUndated = isFirst || version === 'preview' || version === 'latest';
  // Every resource has the Responses API in version v1, dated versions only as previews.
  const named = isUndated || isResponse;
  const query = isFirst || (isResponse && !isUndated) ? '' : `?api-version=${version}`;
  const headers = headersOf(call, upstream);
  if (call.operation === 'models') {
    return { method: 'GET', origin, path: `${folder}${named ? '/v1' : ''}/models${query}`, headers, body: null };
  }
  headers.push('content-type', 'application/json');
  const place = named ? '/v1' : `/deployments/${segment(deployment ?? readModel(call))}`;
  const sent = named && deployment !== undefined ? withModel(call, deployment) : call;
  return {
    method: 'POST',
    origin,
    path: folder + place + operationPaths[call.operation] + query,
    headers,
    body: encodeBody(sent, true, null),
  };
}

/** A given token overrides the key. A token that must be fetched is added by `authorize`. */
function headersOf(call: Call, { apiKey, secrets, settings }: Upstream): string[] {
  const headers = ['accept', call.stream ? 'text/event-stream' : 'application/json'];
  const token = secrets['azure_ad_token'];
  if (token) headers.push('authorization', `Bearer ${token.reveal()}`);
  else if (apiKey && settings['azure_entra_client_id'] === undefined) headers.push('api-key', apiKey.reveal());
  return headers;
}

const withModel = (call: Call, model: string): Call => ({
  ...call,
  edits: { ...call.edits, model: JSON.stringify(model) },
});

function readModel({ body, edits }: Call): string {
  const written = 'model' in edits ? edits['model'] : memberValue(body, 'model')?.toString();
  const model: unknown = written === undefined ? undefined : JSON.parse(written);
  return typeof model === 'string' ? model : '';
}

function segment(deployment: string): string {
  if (/^(?!\.+$)[A-Za-z0-9._-]{1,64}$/.test(deployment)) return deployment;
  throw invalid(
    'model',
    'expected the name of a deployment: up to 64 letters, digits, hyphens, points and underscores',
  );
}

/** Azure's models have `created_at` instead of `created`. */
function decodeModels(body: unknown): unknown {
  const { data } = toRecord(body);
  if (!Array.isArray(data)) return body;
  return {
    object: 'list',
    data: toRecords(data).map((model) => ({
      ...model,
      object: 'model',
      created: asNumber(model['created']) ?? asNumber(model['created_at']) ?? 0,
      owned_by: model['owned_by'] ?? 'azure',
    })),
  };
}

const invalid = (param: string, expected: string): GatewayError =>
  new GatewayError('invalid_request', 'invalid_value', `Invalid '${param}': ${expected}.`, { param });
