import { ChatCompletionRequest, ChatCompletionResponse } from '#libs/contracts/chat.ts';
import type { Route } from '#libs/http/route.ts';
import { liveRoute, type LiveDeps } from './forward-live-call.ts';

/** POST /v1/chat/completions, JSON or a stream. */
export function createChatCompletion(deps: LiveDeps): Route {
  return liveRoute(deps, {
    operation: 'chat',
    request: ChatCompletionRequest,
    path: '/v1/chat/completions',
    operationId: 'createChatCompletion',
    summary: 'Create a chat completion',
    tag: 'Chat',
    scope: 'chat.write',
    responses: {
      200: {
        description: 'The completion, or server-sent events when `stream` is true.',
        schema: ChatCompletionResponse,
        streams: true,
      },
    },
  });
}
