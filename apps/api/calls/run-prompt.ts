import type { Request } from 'express';
import { checkCacheFlags } from '#libs/credentials/configs/call-options.ts';
import {
  bodyToSend,
  refuseMissing,
  type PromptQuery,
  type Prompts,
  type RenderedPrompt,
} from '#libs/stored-prompts/prompts.ts';
import { readCredentials, type RequestedCredential } from '#libs/credentials/requested.ts';
import { withoutConfig } from '#libs/credentials/configs/plan.ts';
import { ChatCompletionResponse } from '#libs/contracts/calls/chat.ts';
import { CompletionResponse } from '#libs/contracts/calls/completions.ts';
import { parseWith, refuseProtoMembers } from '#libs/contracts/parse.ts';
import { RenderedPrompt as RenderedPromptObject, RunPromptRequest } from '#libs/contracts/configs/prompts.ts';
import { abortCallWhenClientLeaves } from '#libs/http/client-signal.ts';
import { getJsonBody } from '#libs/http/bodies/json-body.ts';
import { getCaller, getContext } from '#libs/http/request-context.ts';
import { requireScope } from '#libs/http/rights.ts';
import type { Route } from '#libs/http/route.ts';
import { redactSecrets } from '#libs/credentials/configs/config-secrets.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createBodyCheck } from '#libs/validation/lines/check-body.ts';
import { z } from 'zod';
import { callErrors } from '../document-texts.ts';
import { createLiveCall, liveCourse } from './live-call.ts';
import { answerCall } from './answer-call.ts';
import { liveHeaders, toForward, type LiveDeps, type LiveBody } from './forward-live-call.ts';
import { makeCallTraceparent, refuseWhenUnlogged } from './record-call.ts';

const endpoints = {
  chat: { path: '/v1/chat/completions', scope: 'chat.write' },
  completions: { path: '/v1/completions', scope: 'completions.write' },
} as const;

const exampleVariables = { variables: { customer: 'Ada', question: 'Where is my order?' } };
const promptErrors = {
  prompt_not_found: 'the workspace has no such prompt',
  prompt_version_not_found: 'the prompt has no such version or label',
  prompt_too_large: 'with these variables, the prompt exceeds its size limit',
};

type PromptDeps = LiveDeps & { prompts: Prompts };

const shared = { method: 'POST', tag: 'Prompts', scope: 'prompts.read' } as const;
const input = { body: 'json-bytes', bodySchema: RunPromptRequest, params: z.object({ slug: z.string() }) } as const;

/** POST /v1/prompts/{slug}/render: a prompt with variables as a request. */
export const renderPrompt = ({ prompts }: PromptDeps): Route => ({
  ...shared,
  path: '/v1/prompts/:slug/render',
  operationId: 'renderPrompt',
  summary: 'Render a prompt without making the call',
  description:
    'Returns the request that a completion would send. `missing_variables` lists the template variables without a ' +
    'value. Add `@` and a version number or label to the slug to select a version; the default is the published ' +
    'version.',
  example: exampleVariables,
  errors: promptErrors,
  request: input,
  responses: { 200: { description: 'The request that a completion would send.', schema: RenderedPromptObject } },
  handler: async (request, response) => {
    const { body, missing, missingRequired } = await prompts.preview(queryOf(request));
    // The members of the body are the prompt's parameters.
    const { parameters } = redactSecrets({ parameters: body });
    response.json({
      success: true,
      data: parameters,
      missing_variables: missing,
      missing_required_variables: missingRequired,
    });
  },
});

/** POST /v1/prompts/{slug}/completions: a prompt with variables, and the call with that request. */
export function completePrompt(deps: PromptDeps): Route {
  const requireGoodBody = {
    chat: createBodyCheck('/v1/chat/completions'),
    completions: createBodyCheck('/v1/completions'),
  };
  const course = liveCourse(deps.routing);
  return {
    ...shared,
    path: '/v1/prompts/:slug/completions',
    operationId: 'createPromptCompletion',
    summary: 'Render a prompt and make the call',
    description:
      'Replaces the names in double braces with your variables. The answer is a chat completion, as JSON or as a ' +
      'stream.',
    example: exampleVariables,
    errors: {
      ...promptErrors,
      ...callErrors,
      missing_variables:
        'the template needs variables that the request does not include; send `null` to leave one empty',
    },
    request: { ...input, headers: liveHeaders },
    responses: {
      200: {
        description: 'The completion, or server-sent events when `stream` is true.',
        schema: z.union([ChatCompletionResponse, CompletionResponse]),
      },
    },
    handler: async (request, response) => {
      const query = queryOf(request);
      const rendered = await deps.prompts.preview(query);
      const { operation, prompt } = rendered;
      const { path: pathname, scope } = endpoints[operation];
      const caller = getCaller(request);
      requireScope(caller, scope);
      const parsed = bodyToSend(refuseMissing(rendered));
      requireGoodBody[operation](parsed);
      refuseWhenUnlogged(deps.requestLog);
      const { workspaceId, defaults, keyId, principal } = caller;
      const credentials = withConfig(readCredentials(request.headers), rendered, defaults.allowsConfigOverride);
      checkCacheFlags(request.headers);
      const { model = null } = parsed as LiveBody;
      const found = await deps.routing.planOf({
        workspaceId,
        credentials,
        headers: request.headers,
        defaults,
        model,
        caller: { keyId, role: principal.role },
      });
      const controller = abortCallWhenClientLeaves(response);
      const bytes = Buffer.from(JSON.stringify(parsed));
      getContext(request).memory?.charge(bytes.length);
      const sent = toForward(operation, request, parsed, bytes, controller, parsed);
      sent.traceparent = makeCallTraceparent(deps, request);
      const isRouted = found !== withoutConfig;
      const call = createLiveCall(request, found, {
        credentials,
        pathname,
        sent,
        isRouted,
        promptInput: { ...query, prompt },
      });
      const outcome = await deps.calls.run(call, course);
      return answerCall(deps, { request, response, controller, call, outcome });
    },
  };
}

/** The prompt that the path names, with the variables and parameters from the body. */
function queryOf(request: Request): PromptQuery {
  const { value } = getJsonBody(request);
  refuseProtoMembers(value);
  const { variables, hyperparameters, promptID, prompt_id: promptId, ...further } = parseWith(RunPromptRequest, value);
  const name = String(request.params['slug']);
  for (const [member, repeated] of Object.entries({ promptID, prompt_id: promptId })) {
    if (repeated === undefined || repeated === null || repeated === name) continue;
    const message = `Invalid '${member}': it differs from the one in the path. Leave it out, or send the same value.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: member });
  }
  return {
    workspaceId: getCaller(request).workspaceId,
    name,
    param: 'slug',
    variables: variables ?? {},
    hyperparameters: { ...hyperparameters, ...further },
  };
}

/** The config of a prompt applies unless the caller sends one, or its key has a fixed one. */
function withConfig(sent: RequestedCredential, { config }: RenderedPrompt, isAllowed: boolean): RequestedCredential {
  if (config === null || sent.config !== null || !isAllowed) return sent;
  return { ...sent, config: { value: config, param: 'config' } };
}
