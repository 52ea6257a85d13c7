import { describeFaults } from './faults.ts';
import { latencyForm } from './latency.ts';

/** GET /: what can be asked of the simulator, for people; the faults come from their one table. */
export function describeSimulator() {
  return {
    name: 'sluice simulator',
    what: 'A stand-in for a language-model provider: deterministic answers, chosen latency, chosen faults.',
    routes: [
      'POST /v1/chat/completions',
      'POST /v1/completions',
      'POST /v1/embeddings',
      'GET /v1/models',
      'GET /v1/models/{id}',
      'GET /health',
      'GET /stats',
      'POST /stats/reset',
    ],
    keys: 'Any bearer key is accepted but `invalid` (401), unless the simulator was started with a required key.',
    models: {
      'sim-echo': 'answers with the last user message',
      'sim-reflect': 'answers with the text of the request body, byte for byte; `reflected` holds path and headers',
      'any other name': 'answers with deterministic prose, JSON or tool calls: equal requests have equal answers',
      tools: 'a tool is called when the last user message names it, or tool_choice demands it',
    },
    model_options: {
      form: 'NAME+OPTION+OPTION, such as gpt-4o+80ms+40tps+200tok',
      latency: latencyForm,
      tps: 'tokens a second of a stream',
      tok: 'tokens of the answer',
    },
    headers: {
      'x-simulator-latency': 'a latency for this request',
      'x-simulator-fault': 'a fault for this request, such as 429 or reset-then-ok-1',
      'x-simulator-count': 'count this call in GET /stats by `user` or prompt',
    },
    ...describeFaults(),
  };
}
