import { GatewayError } from '#libs/kernel/errors.ts';
import { claudeSigner } from '../anthropic/decode.ts';
import { findClaudeModel, type ClaudeModel } from '../anthropic/models.ts';

/** The rules of Claude's models; null for all others and for an ARN that does not name the model. */
export const findClaudeRules = (id: string): ClaudeModel | null => (id.includes('claude') ? findClaudeModel(id) : null);

/** Whether it is Claude, or a profile that an account has named itself, whose model only AWS knows. */
export const canBeClaude = (id: string): boolean =>
  id.includes('claude') || /^arn:[^/]*:(application-inference-profile|provisioned-model)\//.test(id);

/** Whose signatures the reasoning of a model has: only Claude's is signed, but that of the others has an author, too. */
export const signerOf = (id: string): string => (canBeClaude(id) ? claudeSigner : 'bedrock');

/** OpenAI's open models, which accept `reasoning_effort` under that name. */
export const isOpenAiModel = (id: string): boolean => /(^|\.)openai\./.test(id);

/**
 * Encodes an id as one path segment, including the slashes of an ARN. Throws invalid_request for an id with `.` or `..`
 * between slashes, which a server that decodes first would resolve to another path.
 */
export function toPathSegment(id: string): string {
  if (id.split('/').some((part) => /^\.{0,2}$/.test(part))) {
    const message = `Invalid 'model': '${id.slice(0, 200)}' is not a valid Bedrock model ID or ARN.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param: 'model' });
  }
  return encodeURIComponent(id).replaceAll(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`);
}
