import { bodyToSend, type Prompts } from '#libs/stored-prompts/prompts.ts';
import type { RenderLine } from '#libs/batches/lines/call-line.ts';
import type { PromptPins } from '#libs/calls/planned-call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { createBodyCheck } from '#libs/validation/lines/check-body.ts';

/** Makes the bodies of lines that name a prompt, with the versions that were pinned when the batch was validated. */
export function createRenderLine(prompts: Pick<Prompts, 'render'>): RenderLine {
  const requireGoodBody = {
    chat: createBodyCheck('/v1/chat/completions'),
    completions: createBodyCheck('/v1/completions'),
  };
  return async ({ workspace_id: workspaceId, gateway_options: options }, operation, bytes) => {
    const line = JSON.parse(bytes.toString()) as Record<string, unknown>;
    const { prompt_id: name, variables, hyperparameters, ...further } = line;
    const query = {
      workspaceId,
      name: String(name),
      param: 'body.prompt_id',
      variables: (variables ?? {}) as Record<string, unknown>,
      hyperparameters: { ...(hyperparameters as object | null | undefined), ...further },
    };
    const rendered = await prompts.render(query, options['pinned_prompts'] as PromptPins);
    if (rendered.operation !== operation) {
      const message = `The prompt '${query.name}' is not for the endpoint of this batch.`;
      throw new GatewayError('invalid_request', 'prompt_not_for_call', message, { param: 'body.prompt_id' });
    }
    const body = bodyToSend(rendered);
    requireGoodBody[rendered.operation](body);
    return { body: Buffer.from(JSON.stringify(body)), promptInput: { ...query, prompt: rendered.prompt } };
  };
}
