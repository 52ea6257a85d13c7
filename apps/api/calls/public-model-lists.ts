import type {
  AnthropicModel,
  AnthropicModelList,
  AnthropicPageQuery,
  ModelObject,
} from '#libs/contracts/calls/models.ts';
import type { PublicModel } from '#libs/credentials/configs/public-models.ts';
import { GatewayError } from '#libs/kernel/errors.ts';

type Listed = Pick<PublicModel, 'name' | 'displayName' | 'createdAtMs' | 'workspaceId'>;

/** A public model as OpenAI lists models. Its owner is the workspace or the organisation. */
export const toOpenAiModel = ({ name, createdAtMs, workspaceId }: Listed): ModelObject => ({
  id: name,
  object: 'model',
  created: Math.floor(createdAtMs / 1_000),
  owned_by: workspaceId,
});

/** A public model as Anthropic lists models. */
export const toAnthropicModel = ({ name, displayName, createdAtMs }: Listed): AnthropicModel => ({
  type: 'model',
  id: name,
  display_name: displayName,
  created_at: new Date(createdAtMs).toISOString(),
});

const limitDefault = 20;

/**
 * A page of Anthropic's list: the models after `after_id`, or the last ones before `before_id`. `has_more`: there are more in
 * that direction. Throws invalid_request for an ID that is not in the list. Pure.
 */
export function toAnthropicPage(
  models: readonly Listed[],
  { limit = limitDefault, after_id: after, before_id: before }: AnthropicPageQuery,
): AnthropicModelList {
  const from = after === undefined ? 0 : findPlace(models, after, 'after_id') + 1;
  const end = before === undefined ? models.length : findPlace(models, before, 'before_id');
  const isBackwards = before !== undefined && after === undefined;
  const page = isBackwards
    ? models.slice(Math.max(0, end - limit), end)
    : models.slice(from, Math.min(end, from + limit));
  const data = page.map(toAnthropicModel);
  return {
    data,
    first_id: data[0]?.id ?? null,
    last_id: data.at(-1)?.id ?? null,
    has_more: isBackwards ? end > limit : from + limit < end,
  };
}

function findPlace(models: readonly Listed[], id: string, param: string): number {
  const place = models.findIndex(({ name }) => name === id);
  if (place >= 0) return place;
  const message = `Invalid '${param}': '${id.slice(0, 200)}' is not in the list. Use 'first_id' or 'last_id' of a previous page.`;
  throw new GatewayError('invalid_request', 'invalid_value', message, { param });
}
