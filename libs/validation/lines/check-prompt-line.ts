import { kindOf, type Problem } from '#libs/contracts/calls/describe-issue.ts';

/** The data of a prompt that is known before its lines are called. */
export type KnownPrompt = {
  lastVersion: number;
  /** Names of the labels that its versions have. */
  labels: readonly string[];
  /** The operation of the version in use. */
  operation: 'chat' | 'completions';
};

const endpoints = { chat: '/v1/chat/completions', completions: '/v1/completions' } as const;

/** Whether a line's body uses a stored prompt: `{prompt_id, variables, …}`. */
export const namesPrompt = (body: Record<string, unknown>, endpoint: string): boolean =>
  body['prompt_id'] !== undefined && Object.values<string>(endpoints).includes(endpoint);

/**
 * The problem of the body of such a line, as far as it is known before the prompt is rendered: its name, version and
 * label, and which endpoint it is for. `prompts` are those of the workspace, by slug and ID.
 */
export function checkPromptLine(
  body: Record<string, unknown>,
  { endpoint, prompts }: { endpoint: string; prompts: ReadonlyMap<string, KnownPrompt> },
): Problem | null {
  const { prompt_id: name, variables } = body;
  if (typeof name !== 'string') return wrongType('body.prompt_id', 'a string', name);
  if (variables !== undefined && variables !== null && kindOf(variables) !== 'an object') {
    return wrongType('body.variables', 'an object', variables);
  }
  const made = ['messages', 'prompt'].find((member) => body[member] !== undefined);
  if (made !== undefined) {
    const message = `Invalid 'body.${made}': it comes from the template of the prompt. Pass variable content in 'variables'.`;
    return { code: 'invalid_value', message, param: `body.${made}` };
  }
  const [base = '', ...rest] = name.split('@');
  const prompt = prompts.get(base);
  const which = rest.length === 0 ? undefined : rest.join('@');
  if (prompt === undefined || !hasVersion(prompt, which)) {
    const message = `There is no prompt '${name.slice(0, 200)}' in this workspace.`;
    return { code: 'prompt_not_found', message, param: 'body.prompt_id' };
  }
  if (which !== undefined || endpoints[prompt.operation] === endpoint) return null;
  const message = `The prompt '${base}' is for ${endpoints[prompt.operation]}, but the endpoint of this batch is ${endpoint}.`;
  return { code: 'prompt_not_for_call', message, param: 'body.prompt_id' };
}

function hasVersion({ lastVersion, labels }: KnownPrompt, which: string | undefined): boolean {
  if (which === undefined || which === 'latest') return true;
  if (!/^\d{1,9}$/.test(which)) return labels.includes(which);
  return Number(which) >= 1 && Number(which) <= lastVersion;
}

const wrongType = (param: string, expected: string, value: unknown): Problem => ({
  code: 'invalid_type',
  message: `Invalid type for '${param}': expected ${expected}, but got ${kindOf(value)} instead.`,
  param,
});
