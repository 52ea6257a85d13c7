import { GatewayError } from '#libs/kernel/errors.ts';

/** What a version of a prompt says of the request, beside its template. */
export type PromptSettings = {
  parameters: Readonly<Record<string, unknown>>;
  functions: object[] | null;
  tools: object[] | null;
  tool_choice: string | object | null;
  model: string | null;
};

/** The template alone makes these. */
const templateMembers: readonly string[] = ['messages', 'prompt'];

/**
 * The body of a prompt's request: its parameters, tools and model, then `content` (messages or a text), then what the caller
 * says instead. Throws invalid_request for messages or a text of the caller's own.
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
