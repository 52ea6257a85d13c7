import type { Call, PromptInput, PromptPins, StoredVersion } from '#libs/calls/planned-call.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { MemberEdits } from '#libs/kernel/json/json-members.ts';
import { editParams } from './edit-params.ts';
import type { Leaf } from './plan.ts';

/** Renders a stored prompt (libs/stored-prompts/prompts.ts). Throws GatewayError. */
export type RenderPrompt = (
  query: Pick<PromptInput, 'variables' | 'hyperparameters'> & { workspaceId: string; name: string; param: string },
  pins?: PromptPins,
) => Promise<Rendered>;

type Rendered = {
  operation: 'chat' | 'completions';
  body: Record<string, unknown>;
  virtualKey: string | null;
  prompt: StoredVersion;
};

/** Members that are always the caller's: whether and how the answer is streamed. The model is chosen separately. */
const notEdited: ReadonlySet<string> = new Set(['stream', 'stream_options', 'model']);

/**
 * Returns the request that the prompt of a leaf produces, with the leaf's edits applied after it. A call that came with a
 * prompt is rendered again, with this prompt; in any other chat, the messages of the prompt come before those of the call.
 * The model is prefixed with the prompt's virtual key, in the form in which callers can write it.
 */
export async function editByPrompt(
  render: RenderPrompt,
  call: Call,
  leaf: Leaf & { prompt: object },
): Promise<{ edits: MemberEdits; model: string | null; isLeafsModel: boolean }> {
  const { params, promptInput, request, workspaceId } = call;
  const { name, variables } = leaf.prompt;
  const input = promptInput ?? inputOf(params);
  const query = {
    workspaceId,
    name,
    param: 'config.prompt_id',
    variables: { ...variables, ...input.variables },
    hyperparameters: input.hyperparameters,
  };
  const rendered = await render(query, call.pinnedPrompts);
  refuseOtherOperation(rendered, call);
  call.prompt = rendered.prompt;
  const body = { ...rendered.body };
  if (promptInput === null)
    body['messages'] = [...(body['messages'] as unknown[]), ...(params['messages'] as unknown[])];
  const edits: Record<string, string | undefined> = {};
  for (const member of Object.keys(params)) if (!notEdited.has(member)) edits[member] = undefined;
  for (const [member, value] of Object.entries(body)) {
    if (!notEdited.has(member)) edits[member] = JSON.stringify(value);
  }
  const own = editParams(leaf, body);
  const { virtualKey } = rendered;
  const model = readModel(body) ?? request.model;
  const named = virtualKey === null || model === null || model.startsWith('@') ? model : `@${virtualKey}/${model}`;
  return { edits: { ...edits, ...own.edits }, model: own.model ?? named, isLeafsModel: own.model !== null };
}

const readModel = ({ model }: Record<string, unknown>): string | null => (typeof model === 'string' ? model : null);

/**
 * For a call that came with its own body: `variables` are for the prompt, and its other parameters replace those of the
 * prompt.
 */
function inputOf(params: Call['params']): Pick<PromptInput, 'variables' | 'hyperparameters'> {
  const { variables, messages: _messages, prompt: _prompt, model: _model, ...hyperparameters } = params;
  const isObject = typeof variables === 'object' && variables !== null && !Array.isArray(variables);
  return { variables: isObject ? (variables as Record<string, unknown>) : {}, hyperparameters };
}

function refuseOtherOperation({ operation, prompt }: Rendered, { request, promptInput }: Call): void {
  if (operation === request.operation && (operation === 'chat' || promptInput !== null)) return;
  const what = operation === 'chat' ? 'a chat prompt' : 'a text prompt';
  const message =
    `The prompt '${prompt.slug}' of this config is ${what}, which this call cannot use. ` +
    (operation === 'chat'
      ? 'Use it with /v1/chat/completions or with calls of chat prompts.'
      : 'Use it with calls of text prompts: /v1/prompts/{slug}/completions.');
  throw new GatewayError('invalid_request', 'prompt_not_for_call', message, { param: 'config.prompt_id' });
}
