import { claudeModelOf, type ClaudeModel } from '../anthropic/models.ts';

/** Claude, whose rules are known; null for all other models, and for an ARN that does not say which model it is. */
export const claudeOf = (id: string): ClaudeModel | null => (id.includes('claude') ? claudeModelOf(id) : null);

/** OpenAI's open models, which take `reasoning_effort` by its name. */
export const isOpenAiModel = (id: string): boolean => /(^|\.)openai\./.test(id);

/**
 * A model's id (or ARN, with its colons and slashes) as one path segment, escaped as AWS's own clients do it: the signature
 * is made over this very text.
 */
export const toPathSegment = (id: string): string =>
  encodeURIComponent(id).replaceAll(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`);
