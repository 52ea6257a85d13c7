import type { Clock } from '#libs/kernel/clock.ts';
import { anthropic } from '#apps/simulator/wire/anthropic/anthropic.ts';
import { messagesCall } from '#apps/simulator/wire/anthropic/messages.ts';
import { readBearerToken } from '#apps/simulator/wire/bearer.ts';
import { countCall } from '../gemini/count-tokens.ts';
import { generateCall } from '../gemini/generate-content.ts';
import { googleError, refuseFlaw } from '../gemini/google-error.ts';
import { eventForm, googleJson } from '../gemini/streams.ts';
import { chatCall } from '#apps/simulator/wire/openai/chat.ts';
import { openai } from '#apps/simulator/wire/openai/openai.ts';
import { unescapePath } from '#apps/simulator/wire/unescape-path.ts';
import { Refusal, type Call, type Received, type WireFormat } from '#apps/simulator/wire/wire-format.ts';
import { isTokenGood } from './token.ts';
import { z } from 'zod';
import { embed } from '#apps/simulator/model/embed.ts';
import { hashText } from '#apps/simulator/model/hash.ts';
import { countTokens } from '#apps/simulator/model/tokens.ts';
import { checkShape } from '#apps/simulator/wire/check-shape.ts';
import { embeddingSizeDefault, embeddingSizes } from '../gemini/embed-content.ts';

type Operation = (received: Received, model: string) => Call;

const operations: Record<string, Record<string, Operation>> = {
  google: {
    generateContent: (received, model) => generateCall(received, model, 'vertex', false),
    streamGenerateContent: (received, model) => generateCall(received, model, 'vertex', true),
    predict: predictCall,
    countTokens: countCall,
  },
  anthropic: {
    rawPredict: (received, model) => claudeCall(received, model, false),
    streamRawPredict: (received, model) => claudeCall(received, model, true),
  },
};

/** The API of {region}-aiplatform.googleapis.com: Gemini, Claude, embeddings, and OpenAI's format for the rest. */
export function createVertex({ clock }: { clock: Clock }): WireFormat {
  return {
    find(method, path) {
      const [, rest = ''] = /^\/v1\/projects\/[^/]+\/locations\/[a-z0-9-]+\/(.+)$/.exec(path) ?? [];
      if (rest === 'endpoints/openapi/chat/completions') {
        const name = 'POST /v1/projects/{p}/locations/{r}/endpoints/openapi/chat/completions';
        if (method !== 'POST') return { name, allow: 'POST' };
        return { name, reads: 'json', call: (received) => ({ ...chatCall(received), form: openai.form }) };
      }
      const [, publisher = '', model = '', verb = ''] =
        /^publishers\/(google|anthropic)\/models\/([^/:]+):([A-Za-z]+)$/.exec(rest) ?? [];
      const verbs = operations[publisher] ?? {};
      const operation = Object.hasOwn(verbs, verb) ? verbs[verb] : undefined;
      if (operation === undefined) return undefined;
      const name = `POST /v1/projects/{p}/locations/{r}/publishers/${publisher}/models/{m}:${verb}`;
      if (method !== 'POST') return { name, allow: 'POST' };
      return { name, reads: 'json', call: (received) => operation(received, unescapePath(model)) };
    },
    credential(headers) {
      const token = readBearerToken(headers);
      const good = isTokenGood(token, clock);
      if (good === undefined) return token;
      return good ? undefined : 'invalid';
    },
    refuseCredential: (problem) => ({
      status: 401,
      message:
        problem === 'missing'
          ? 'Request is missing required authentication credential. Expected OAuth 2 access token, login cookie or other valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project.'
          : 'Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project.',
    }),
    errorBody: (failure) => JSON.stringify(googleError(failure)),
    form: eventForm,
    headers: ({ processingMs }) => ['server-timing', `gfet4t7; dur=${Math.round(processingMs)}`],
  };
}

/** Claude's answers and request errors have Anthropic's format; errors about tokens and quotas have Google's. */
function claudeCall(received: Received, model: string, stream: boolean): Call {
  try {
    if (received.json['stream'] !== undefined && received.json['stream'] !== stream) {
      throw new Refusal({
        status: 400,
        message: `stream: must be ${stream} for this method`,
        type: 'invalid_request_error',
      });
    }
    // Here, the versions of Claude models follow an @.
    return { ...messagesCall(received, { model, stream }), form: anthropic.form };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    const body = anthropic.errorBody(error.failure, 'req_vrtx_simulator');
    throw new Refusal({ ...error.failure, body }, { cause: error });
  }
}

const request = z.strictObject({
  instances: z
    .array(z.strictObject({ content: z.string(), task_type: z.string().optional(), title: z.string().optional() }))
    .min(1)
    .max(250),
  parameters: z
    .strictObject({ autoTruncate: z.boolean().optional(), outputDimensionality: z.int().min(1).max(8192).optional() })
    .optional(),
});

/** POST …/publishers/google/models/{m}:predict, for embedding models. */
function predictCall(received: Received, model: string): Call {
  const { instances, parameters } = checkShape(request, received.json, refuseFlaw);
  const size = parameters?.outputDimensionality ?? embeddingSizes[model] ?? embeddingSizeDefault;
  return {
    model,
    hash: hashText(`${model}\n${received.text}`),
    user: undefined,
    stream: false,
    contentType: googleJson,
    frames: () => [],
    body: ({ manner }) => {
      const predictions = instances.map(({ content }) => {
        const statistics = { token_count: countTokens(content), truncated: false };
        return { embeddings: { statistics, values: embed(hashText(`${model}\n${content}`), size) } };
      });
      const billableCharacterCount = instances.reduce(
        (sum, { content }) => sum + content.replaceAll(/\s/g, '').length,
        0,
      );
      const reflected = manner === 'reflect' ? { reflected_body: received.text } : {};
      return JSON.stringify({ predictions, metadata: { billableCharacterCount }, ...reflected });
    },
  };
}
