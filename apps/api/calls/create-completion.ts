import { CompletionRequest, CompletionResponse } from '#libs/contracts/completions.ts';
import type { Route } from '#libs/http/route.ts';
import { liveRoute, type LiveDeps } from './forward-live-call.ts';

/** POST /v1/completions, JSON or a stream. */
export function createCompletion(deps: LiveDeps): Route {
  return liveRoute(deps, {
    operation: 'completions',
    request: CompletionRequest,
    path: '/v1/completions',
    operationId: 'createCompletion',
    summary: 'Create a text completion',
    tag: 'Completions',
    scope: 'completions.write',
    responses: {
      200: {
        description: 'The completion, or server-sent events when `stream` is true.',
        schema: CompletionResponse,
        streams: true,
      },
    },
  });
}
