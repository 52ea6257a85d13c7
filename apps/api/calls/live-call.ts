import type { Request } from 'express';
import { withOptions } from '#libs/credentials/configs/call-options.ts';
import type { RequestedCredential } from '#libs/credentials/requested.ts';
import type { FoundPlan } from '#libs/credentials/configs/plan.ts';
import type { Routing } from '#libs/credentials/routing.ts';
import type { ForwardRequest } from '#libs/calls/call.ts';
import type { Course } from '#libs/calls/calls.ts';
import { noAttempts, type Call } from '#libs/calls/planned-call.ts';
import { readAgentSession } from '#libs/contracts/calls/agent-session.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { getCallMetadata } from './call-metadata.ts';

/** A call of a client that waits for its answer. */
export type LiveCall = Call & {
  readonly credentials: RequestedCredential;
  /** The name of its config in messages. */
  readonly configParam: string;
  readonly startedAt: number;
  /** The call uses a config, options in its headers or guardrails, so its answer and its record contain the target. */
  readonly isRouted: boolean;
  /** Whether it has its row in the request log. */
  isRecorded: boolean;
};

type Sent = Pick<LiveCall, 'credentials' | 'pathname' | 'isRouted'> & {
  sent: ForwardRequest;
  promptInput?: LiveCall['promptInput'];
  modelOverride?: LiveCall['modelOverride'];
};

/** A call as its client sent it. `pathname` is the route's. */
export function createLiveCall(
  request: Request,
  { plan, param, options, stored }: FoundPlan,
  { credentials, pathname, sent, isRouted, promptInput = null, modelOverride = null }: Sent,
): LiveCall {
  const { workspaceId, keyId } = getCaller(request);
  return {
    plan,
    request: sent,
    params: sent.parsed ?? noParams,
    metadata: getCallMetadata(request),
    pathname,
    session: readAgentSession(request.headers),
    workspaceId,
    keyId,
    modelOverride,
    adjust: options === null ? null : (leaf) => withOptions(leaf, options),
    config: stored,
    promptInput,
    prompt: promptInput === null ? null : promptInput.prompt,
    waitsForBudget: false,
    leaf: plan.leaves[0],
    target: null,
    model: sent.model,
    earlierAttempts: noAttempts,
    fallbacks: 0,
    retries: 0,
    credentials,
    configParam: param,
    startedAt: Date.now(),
    isRouted,
    isRecorded: false,
  };
}

const noParams = {};

/** Live calls are made once, with the caller's credentials for targets that do not have their own. */
export const liveCourse = (routing: Pick<Routing, 'resolveLeaf'>): Course<LiveCall> => ({
  resolve: ({ workspaceId, credentials, configParam: param }, leaf, model, isLeafsModel) =>
    routing.resolveLeaf({ workspaceId, credentials, leaf, param, model, isLeafsModel }),
});
