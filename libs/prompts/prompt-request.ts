import { GatewayError } from '#libs/kernel/errors.ts';

/** The settings of the request in a version of a prompt, in addition to its template. */
export type PromptSettings = {
  parameters: Readonly<Record<string, unknown>>;
  functions: object[] | null;
  tools: object[] | null;
  tool_choice: string | object | null;
  model: string | null;
};

/** Only the template can set these. */
const templateMembers: readonly string[] = ['messages', 'prompt'];

/**
 * The body of a prompt's request: its parameters, tools and model, then `content` (messages or a text), then the
 * caller's overrides. Throws invalid_request if the caller's overrides contain messages or a text.
 */
export function promptRequest(
  { parameters, functions, tools, tool_choice: toolChoice, model }: PromptSettings,
  { operation, content }: { operation: 'chat' | 'completions'; content: unknown },
  hyperparameters: Readonly<Record<string, unknown>>,
): Record<string, unknown> {
  const own = templateMembers.find((member) => hyperparameters[member] !== undefined);
  if (own !== undefined) {
    const message = `Invalid '${own}': it comes from the template of the prompt. Pass variable content in 'variables'.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: own });
  }
  return {
    ...parameters,
    ...(model === null ? {} : { model }),
    ...(functions === null ? {} : { functions }),
    ...(tools === null ? {} : { tools }),
    ...(toolChoice === null ? {} : { tool_choice: toolChoice }),
    ...(operation === 'chat' ? { messages: content } : { prompt: content }),
    ...hyperparameters,
  };
}
