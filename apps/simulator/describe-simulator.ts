import { describeFaults } from './faults/faults.ts';
import { latencyForm } from './faults/latency.ts';

/** GET /: describes the simulator for people. The faults are read from their table. */
export function describeSimulator() {
  return {
    name: 'sluice simulator',
    what: 'Simulates a language-model provider: deterministic answers, configurable latency, configurable faults.',
    routes: {
      openai: [
        'POST /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/responses, /v1/moderations, /v1/rerank',
        'POST /v1/images/{generations|edits|variations}, /v1/audio/{speech|transcriptions|translations}',
        'GET /v1/models, /v1/models/{id}',
        'POST and GET /v1/files; GET and DELETE /v1/files/{id}; GET /v1/files/{id}/content',
        'POST and GET /v1/fine_tuning/jobs; GET /v1/fine_tuning/jobs/{id}, …/events, …/checkpoints; POST …/{cancel|pause|resume}',
        'ANY /v1/assistants/**, /v1/threads/**, /v1/vector_stores/**, /v1/responses/**, /v1/conversations/**: return what was sent',
      ],
      anthropic: ['POST /v1/messages', 'GET /v1/models, /v1/models/{id} with the header anthropic-version'],
      gemini: [
        'POST /v1beta/models/{m}:{generateContent|streamGenerateContent|embedContent|batchEmbedContents}',
        'GET /v1beta/models, /v1beta/models/{m}',
      ],
      vertex: [
        'POST /v1/projects/{p}/locations/{r}/publishers/google/models/{m}:{generateContent|streamGenerateContent|predict}',
        'POST /v1/projects/{p}/locations/{r}/publishers/anthropic/models/{m}:{rawPredict|streamRawPredict}',
        'POST /v1/projects/{p}/locations/{r}/endpoints/openapi/chat/completions',
        'POST /token: an access token for the JWT of a service account (token-2s in its address: valid for two seconds)',
      ],
      bedrock: ['POST /model/{id}/{converse|converse-stream|invoke}'],
      cohere: ['POST /v2/chat, /v2/embed', 'GET /v1/models with page_size or the header x-client-name'],
      own: ['GET /', 'GET /health', 'GET /stats', 'POST /stats/reset'],
    },
    keys: {
      all: 'Any key except `invalid` is accepted, unless the simulator was started with a required key.',
      vertex: 'Tokens of POST /token expire as announced; any other bearer token is accepted.',
    },
    models: {
      'sim-echo': 'answers with the last user message',
      'sim-reflect': 'answers with the text of the request body, byte for byte; `reflected` contains path and headers',
      'any other name': 'answers with deterministic prose, JSON or tool calls: equal requests have equal answers',
      'gemini-3…': 'signs its function calls (Gemini, Vertex)',
      'sim-tune-fail': 'its fine-tuning jobs fail in the middle of training',
      tools: 'a tool is called if the last user message names it or tool_choice requires it',
    },
    model_options: {
      form: 'NAME+OPTION+OPTION, like gpt-4o+80ms+40tps+200tok; `__` is the same as `+`',
      latency: latencyForm,
      tps: 'tokens per second of a stream',
      tok: 'tokens of the answer',
      think: 'thinks before it answers, in the form of the provider; reasoning tokens are counted',
      cached: 'half of the prompt was read from a cache',
      preamble: 'writes a few words before it calls a tool',
      refuse: 'declines to answer, in the form of the provider',
      'training:2s': 'how long a fine-tuning job of the model takes (default: 10 s, SIMULATOR_TRAINING)',
      '3000000bytes': 'the size of generated audio',
    },
    headers: {
      'x-simulator-latency': 'a latency for this request',
      'x-simulator-fault': 'a fault for this request, like 429 or reset-then-ok-1',
      'x-simulator-training': 'the duration of the fine-tuning job that this request creates',
      'x-simulator-bytes': 'the size of the audio that this request generates',
      'x-simulator-count': 'count this call in GET /stats by `user` or prompt',
    },
    ...describeFaults(),
  };
}
