import { memberValue, spliceMembers, type MemberEdits } from '#libs/kernel/json/json-members.ts';
import { decodeOpenAiError } from './openai-error.ts';
import { relayResponses } from './responses/relay-responses.ts';
import {
  amendsAnswers,
  amendWhole,
  describeVariant,
  variantEdits,
  openAmendedStream,
  written,
  type Variant,
} from './variant.ts';
import {
  operationPaths,
  type Addressing,
  type Call,
  type Operation,
  type OutboundRequest,
  type Provider,
  type RelayArea,
  type RelayCall,
  type SettingFields,
  type Settings,
  type Translation,
  type Upstream,
} from './provider.ts';
import { partsOf } from './url-parts.ts';

type Options = {
  id: string;
  aliases?: readonly string[];
  /** Absent: each target must specify a `custom_host`. */
  baseUrl?: string;
  operations?: readonly Exclude<Operation, 'messages' | 'count_tokens' | 'generate_content' | 'count_content_tokens'>[];
  /**
   * false: usage is sent without asking, and the provider sometimes rejects a `stream_options` that the client did not
   * send.
   */
  asksForUsage?: boolean;
  clientHeaders?: readonly string[];
  settings?: SettingFields;
  /**
   * Settings that are sent as the header of that name (`openai_project`: `openai-project`) unless the client sends one.
   */
  headerSettings?: readonly string[];
  /** How its chat API differs from OpenAI's. null: not at all; it knows even the role `developer`. */
  variant?: Variant | null;
  /** The pass-through areas that it supports. Default: none. */
  relays?: readonly RelayArea[];
  /** Whether it has OpenAI's fine-tuning API. */
  fineTuning?: boolean;
  notes?: readonly string[];
};

/** Embeddings of a client of Google can have a task, by a name that no client of OpenAI writes. Only Google knows it. */
const withoutTask = (call: Call): Call =>
  !call.body.includes('"taskType"')
    ? call
    : { ...call, edits: { ...call.edits, taskType: undefined, title: undefined } };

/** Most servers know only the roles system, user, assistant and tool. */
const common: Variant = {};

/** A provider with an OpenAI-compatible API: the client's bytes are sent, and the provider's bytes are returned. */
export function openAiCompatible({
  id,
  aliases = [],
  baseUrl,
  operations = ['chat', 'completions', 'embeddings', 'models'],
  asksForUsage = true,
  clientHeaders = [],
  settings = {},
  headerSettings = [],
  variant = common,
  relays = [],
  fineTuning = false,
  notes = [],
}: Options): Provider {
  const fromSettings = headerSettings.map((setting) => [setting.replaceAll('_', '-'), setting] as const);
  const pushSettings = (headers: string[], settings: Settings, sent: Readonly<Record<string, string>>): void => {
    for (const [header, setting] of fromSettings) {
      const value = settings[setting];
      if (value !== undefined && sent[header] === undefined) headers.push(header, value);
    }
  };
  const translation: Translation = {
    encode(call, { baseUrl: base, apiKey, settings }) {
      const headers = ['accept', call.stream ? 'text/event-stream' : 'application/json'];
      if (apiKey) headers.push('authorization', `Bearer ${apiKey.reveal()}`);
      for (const name of Object.keys(call.headers)) headers.push(name, call.headers[name] ?? '');
      pushSettings(headers, settings, call.headers);
      const { origin, folder, search } = partsOf(base);
      const path = folder + operationPaths[call.operation] + search;
      if (call.operation === 'models') return { method: 'GET', origin, path, headers, body: null };
      headers.push('content-type', 'application/json');
      return { method: 'POST', origin, path, headers, body: encodeBody(call, asksForUsage, variant) };
    },
    decodeError: decodeOpenAiError,
    passThrough: true,
  };
  const chat: Translation =
    variant === null || !amendsAnswers(variant)
      ? translation
      : {
          ...translation,
          decode: (body, call) => amendWhole(variant, body, call),
          openStream: (call) => openAmendedStream(variant, call, decodeOpenAiError),
        };
  const byOperation = {
    chat,
    completions: translation,
    embeddings: {
      ...translation,
      encode: (call: Call, upstream: Upstream) => translation.encode(withoutTask(call), upstream),
    },
    models: { ...translation, decode: toModelList },
    responses: relayResponses((call, upstream) => translation.encode(call, upstream)),
    // Live calls of these areas are relayed as streams, but batch lines are ordinary calls.
    moderations: translation,
    images: translation,
  };
  const ofLines = (['responses', 'moderations', 'images'] as const).filter((area) => relays.includes(area));
  const encodeRelayed = (call: RelayCall, upstream: Upstream): OutboundRequest => {
    const request = encodeRelay(call, upstream);
    pushSettings(request.headers, upstream.settings, call.headers);
    return request;
  };
  const address = baseUrl === undefined ? null : new URL(baseUrl);
  const differences = variant === null ? [] : describeVariant(variant);
  return {
    id,
    aliases,
    settings: { ...settings, ...Object.fromEntries(headerSettings.map((setting) => [setting, {}])) },
    ...(baseUrl === undefined ? {} : { address: baseUrl }),
    baseUrlOf: () => address,
    needsCredential: address !== null,
    clientHeaders: [...clientHeaders, ...fromSettings.map(([header]) => header)],
    requestIdHeaders: ['x-request-id'],
    ...(relays.length > 0 ? { relay: { areas: relays, encode: encodeRelayed } } : {}),
    ...(differences.length > 0 ? { differences } : {}),
    notes,
    ...(fineTuning ? { fineTuning: getRegionAddress } : {}),
    operations: Object.fromEntries([...operations, ...ofLines].map((operation) => [operation, byOperation[operation]])),
  };
}

const getRegionAddress: Addressing = (path, { baseUrl, apiKey }) => {
  const { origin, folder, search } = partsOf(baseUrl);
  const [plain = path, query] = path.split('?', 2);
  const queries = [search.slice(1), query].filter(Boolean).join('&');
  return {
    origin,
    path: `${folder}${plain}${queries === '' ? '' : `?${queries}`}`,
    headers: apiKey ? ['authorization', `Bearer ${apiKey.reveal()}`] : [],
  };
};

/** The client's request with another base URL and the provider's credential. */
function encodeRelay(call: RelayCall, { baseUrl, apiKey }: Upstream): OutboundRequest {
  const { origin, folder } = partsOf(baseUrl);
  const headers = relayHeaders(call);
  if (apiKey) headers.push('authorization', `Bearer ${apiKey.reveal()}`);
  return { method: call.method, origin, path: folder + call.path, headers, body: call.body };
}

/** The client's headers that are forwarded to every provider. */
function relayHeaders({ accept, contentType, contentLength, headers: admitted }: RelayCall): string[] {
  const headers = ['accept', accept ?? '*/*'];
  if (contentType !== null) headers.push('content-type', contentType);
  if (contentLength !== null) headers.push('content-length', String(contentLength));
  for (const name of Object.keys(admitted)) headers.push(name, admitted[name] ?? '');
  return headers;
}

/** Some servers return a bare list of models. */
function toModelList(body: unknown): unknown {
  return Array.isArray(body) ? { object: 'list', data: body } : body;
}

/** The client's bytes. Only the members that the target, the variant or the core's accounting require are changed. */
export function encodeBody(call: Call, asksForUsage: boolean, variant: Variant | null): Uint8Array {
  const usage = call.stream && !call.includeUsage && asksForUsage;
  const isChat = call.operation === 'chat';
  const bound = isChat && hasBothBounds(call) ? withoutOldBound : undefined;
  const changes = variant === null || !isChat ? undefined : variantEdits(variant, call);
  if (!usage && bound === undefined && changes === undefined && Object.keys(call.edits).length === 0) return call.body;
  return spliceMembers(call.body, { ...call.edits, ...bound, ...(usage ? askForUsage(call) : undefined), ...changes });
}

/** Servers differ in which of the two bounds they obey, so only the newer one is sent. */
const withoutOldBound: MemberEdits = { max_tokens: undefined };

function hasBothBounds(call: Call): boolean {
  const isGiven = (name: string): boolean => (written(call, name) ?? 'null') !== 'null';
  return isGiven('max_completion_tokens') && isGiven('max_tokens');
}

/** Sets `include_usage` in the client's own `stream_options` and keeps its other members. */
function askForUsage({ body, edits }: Call): MemberEdits {
  const written = 'stream_options' in edits ? edits['stream_options'] : memberValue(body, 'stream_options');
  const options = written === undefined ? undefined : Buffer.from(written);
  const isObject = options?.[0] === 0x7b;
  return {
    stream_options: isObject ? spliceMembers(options, { include_usage: 'true' }).toString() : '{"include_usage":true}',
  };
}
