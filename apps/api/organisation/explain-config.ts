import type { Routing } from '#libs/credentials/routing.ts';
import { credentialHeaders, readCredentials } from '#libs/credentials/requested.ts';
import { describeSteps, explainPlan } from '#libs/credentials/configs/explain.ts';
import type { PlanDeps } from '#libs/calls/plan/run-plan.ts';
import { readAgentSession } from '#libs/contracts/calls/agent-session.ts';
import { ConfigExplanation, ExplainConfigRequest } from '#libs/contracts/configs/explain-config.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { withInput, type Route } from '#libs/http/route.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import type { Clock } from '#libs/kernel/clock.ts';

/**
 * POST /v1/configs/explain: explains what a call would do, without calling any provider: which conditions match, which
 * target is chosen, and why one would be refused. Throws like a live call if its config would be refused.
 */
export const explainConfig = (deps: {
  routing: Pick<Routing, 'planOf' | 'resolveLeaf'>;
  search: PlanDeps['search'];
  clock: Clock;
}): Route => ({
  method: 'POST',
  path: '/v1/configs/explain',
  operationId: 'explainConfig',
  summary: 'Explain what a call with a config would do, without making it',
  description:
    'Shows which conditions match, which target is selected, and why a target would be rejected. Uses the real routing ' +
    'code; no provider is called.',
  example: { config: 'support', body: { model: 'gpt-4o-mini' }, metadata: { tier: 'gold' } },
  errors: { config_not_found: 'the config does not exist' },
  tag: 'Configs',
  scope: 'configs.read',
  responses: { 200: { description: 'The steps of the call.', schema: ConfigExplanation } },
  ...withInput({ body: ExplainConfigRequest, headers: [...credentialHeaders] }, async ({ body }, request, response) => {
    const { workspaceId, defaults, keyId, principal } = getCaller(request);
    const sent = readCredentials(request.headers);
    const config = body.config === undefined ? sent.config : { value: body.config, param: 'config' };
    const credentials = { ...sent, config };
    const { model } = body.body ?? {};
    const found = await deps.routing.planOf({
      workspaceId,
      credentials,
      headers: request.headers,
      defaults,
      model: typeof model === 'string' ? model : null,
      caller: { keyId, role: principal.role },
    });
    const { signal } = abortWhenClientLeaves(response);
    const steps = await explainPlan(
      {
        call: {
          params: body.body ?? {},
          metadata: body.metadata ?? null,
          pathname: body.endpoint ?? '/v1/chat/completions',
          session: readAgentSession(request.headers),
        },
        search: (rule, text) => deps.search(rule, text, { workspaceId, signal }),
        resolve: async (leaf, model, isLeafsModel) =>
          await deps.routing.resolveLeaf({ workspaceId, credentials, leaf, param: found.param, model, isLeafsModel }),
        now: deps.clock.now(),
      },
      found.plan.root,
    );
    const { stored } = found;
    response.json({
      object: 'config.explanation',
      config: stored && { id: stored.id, slug: stored.slug, version: stored.version },
      steps,
      text: describeSteps(steps),
    });
  }),
});
