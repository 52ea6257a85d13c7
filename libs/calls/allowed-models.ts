import { GatewayError } from '#libs/kernel/errors.ts';
import { memberValues } from '#libs/kernel/json/json-members.ts';
import { namesForRules, ruleNames } from '#libs/prices/model-names.ts';
import type { AllowedModels, ForwardRequest, Target } from './call.ts';

/**
 * Whether a model can be called. An excluded model is excluded under all of its names. An allowed model is allowed only
 * as it is written.
 */
export function allows({ listed, allowsOthers }: AllowedModels, model: string): boolean {
  const own = listed.get(model);
  if (own !== undefined || !allowsOthers) return own ?? false;
  return namesForRules(model).isDisjointFrom(excludedNames(listed));
}

const excluded = new WeakMap<AllowedModels['listed'], ReadonlySet<string>>();

function excludedNames(listed: AllowedModels['listed']): ReadonlySet<string> {
  const known = excluded.get(listed);
  if (known !== undefined) return known;
  const names = new Set([...listed].flatMap(([name, isAllowed]) => (isAllowed ? [] : ruleNames(name))));
  excluded.set(listed, names);
  return names;
}

/** Members of OpenRouter's bodies that name models in addition to `model`, or let the provider choose one. */
const choiceMembers = ['models', 'route', 'preset'] as const;
type Choices = Readonly<Partial<Record<(typeof choiceMembers)[number], unknown>>>;

/**
 * The other models that a provider can choose for a request. `chooses`: the member by which the provider could choose a
 * model that the request does not name; null if there is none.
 */
export type OtherModels = { names: readonly string[]; chooses: string | null };

export function otherModelsIn({ models, route, preset }: Choices): OtherModels {
  const names = models === undefined || models === null ? [] : [models].flat();
  if (!names.every((name) => typeof name === 'string')) return { names: [], chooses: 'models' };
  if (route !== undefined && route !== null) return { names, chooses: 'route' };
  return { names, chooses: preset === undefined || preset === null ? null : 'preset' };
}

/** Reads only these members of the body. */
export function otherModels({ body, edits = {} }: Pick<ForwardRequest, 'body' | 'edits'>): OtherModels {
  const given = body.length === 0 ? {} : memberValues(body, choiceMembers);
  const choices = choiceMembers.map((name) => {
    const raw = name in edits ? edits[name] : given[name]?.toString();
    return [name, raw === undefined ? undefined : (JSON.parse(raw) as unknown)] as const;
  });
  return otherModelsIn(Object.fromEntries(choices));
}

/**
 * The base of a fine-tuned model, if the integration of its credential lists it. The fine-tuned model costs as much as
 * its base.
 */
export const findBaseModel = ({ models }: Pick<Target, 'models'>, model: string | null): string | null =>
  models === undefined || model === null ? null : (models.bases.get(model) ?? null);

const namedMax = 20;

/** If such a call names no model, the provider chooses one. */
const choosing: ReadonlySet<string> = new Set([
  'chat',
  'completions',
  'embeddings',
  'messages',
  'generate_content',
  'moderations',
  'images',
  'audio',
  'rerank',
]);
const choosingPaths = /^\/(?:responses(?:\/compact|\/input_tokens)?|threads(?:\/[^/]+)?\/runs)$/;

/**
 * Throws forbidden (`model_not_allowed`) if the credential does not allow the call's model, or another model that its
 * body names. `label` names the credential.
 */
export function assertRequestAllowed(
  models: AllowedModels,
  label: string,
  model: string | null,
  request: Pick<ForwardRequest, 'operation' | 'relayed' | 'body' | 'edits'>,
): void {
  assertModelAllowed(models, label, model, request);
  const { names, chooses } = otherModels(request);
  for (const name of names) assertModelAllowed(models, label, name, request, 'models');
  if (chooses === null) return;
  const message = `'${label}' only allows certain models, and '${chooses}' lets the provider choose others. Remove it, and name the models in 'model' or as a list of strings in 'models'.`;
  throw new GatewayError('forbidden', 'model_not_allowed', message, { param: chooses });
}

/** Throws forbidden (`model_not_allowed`) for a model that a credential does not allow. */
export function assertModelAllowed(
  models: AllowedModels,
  label: string,
  model: string | null,
  { operation, relayed }: Pick<ForwardRequest, 'operation' | 'relayed'>,
  param = 'model',
): void {
  if (model === null) {
    const path = relayed?.path.split('?', 1)[0] ?? `/${operation}`;
    const isChosen = choosing.has(operation) || choosingPaths.test(path);
    const isRestricted = !models.allowsOthers || excludedNames(models.listed).size > 0;
    if (!isChosen || !isRestricted || (relayed !== undefined && relayed.method !== 'POST')) return;
  } else if (allows(models, model)) return;
  const names = [...models.listed].filter(([, isAllowed]) => isAllowed).map(([name]) => name);
  const shown =
    names.slice(0, namedMax).join(', ') + (names.length > namedMax ? ` and ${names.length - namedMax} more` : '');
  const allowed = models.allowsOthers
    ? 'All models are allowed except those that its integration excludes.'
    : names.length === 0
      ? 'None is allowed.'
      : `Allowed: ${shown}.`;
  const what = model === null ? 'A call without a model is' : `The model '${model.slice(0, 200)}' is`;
  throw new GatewayError('forbidden', 'model_not_allowed', `${what} not allowed with '${label}'. ${allowed}`, {
    param,
  });
}
