import { GatewayError } from '#libs/kernel/errors.ts';
import { claudeModelOf, type ClaudeModel } from '../anthropic/models.ts';

/** Claude, whose rules are known; null for all other models, and for an ARN that does not say which model it is. */
export const claudeOf = (id: string): ClaudeModel | null => (id.includes('claude') ? claudeModelOf(id) : null);

/** OpenAI's open models, which take `reasoning_effort` by its name. */
export const isOpenAiModel = (id: string): boolean => /(^|\.)openai\./.test(id);

/**
 * An id as one segment of a path; the slashes of an ARN are encoded. Throws invalid_request for one with dots between its
 * slashes, which a server that decodes first would take for another path.
 */
export function toPathSegment(id: string): string {
  if (id.split('/').some((part) => /^\.{0,2}$/.test(part))) {
    const message = `Invalid 'model': '${id.slice(0, 200)}' is no id of a model or ARN of Bedrock.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'model' });
  }
  return encodeURIComponent(id).replaceAll(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`);
}
