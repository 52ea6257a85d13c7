import { GatewayError } from '#libs/kernel/errors.ts';
import type { AllowedModels, ForwardRequest, Target } from './call.ts';

/** Whether a model may be called. */
export const allows = ({ listed, allowsOthers }: AllowedModels, model: string): boolean =>
  listed.get(model) ?? allowsOthers;

/** What a fine-tuned model was made of, where the integration of its credential says so: it costs as much. */
export const baseOf = ({ models }: Pick<Target, 'models'>, model: string | null): string | null =>
  models === undefined || model === null ? null : (models.bases.get(model) ?? null);

const namedMax = 20;

/** Without a model of its own, such a call gets one that the provider chooses. */
const choosing: ReadonlySet<string> = new Set([
  'chat',
  'completions',
  'embeddings',
  'moderations',
  'images',
  'audio',
  'rerank',
]);
const choosingPaths: ReadonlySet<string> = new Set(['/responses', '/responses/compact', '/responses/input_tokens']);

/** Throws forbidden (`model_not_allowed`) for a call of a model that its credential is not for. `label` names the credential. */
export function assertModelAllowed(
  models: AllowedModels,
  label: string,
  model: string | null,
  { operation, relayed }: Pick<ForwardRequest, 'operation' | 'relayed'>,
): void {
  if (model === null) {
    const path = relayed?.path.split('?', 1)[0] ?? '/responses';
    const isChosen = operation === 'responses' ? choosingPaths.has(path) : choosing.has(operation);
    if (models.allowsOthers || !isChosen || (relayed !== undefined && relayed.method !== 'POST')) return;
  } else if (allows(models, model)) return;
  const names = [...models.listed].filter(([, isAllowed]) => isAllowed).map(([name]) => name);
  const shown =
    names.slice(0, namedMax).join(', ') + (names.length > namedMax ? ` and ${names.length - namedMax} more` : '');
  const allowed = models.allowsOthers
    ? 'All models are allowed but those that its integration excludes.'
    : names.length === 0
      ? 'None is allowed.'
      : `Allowed: ${shown}.`;
  const what = model === null ? 'A call without a model is' : `The model '${model.slice(0, 200)}' is`;
  throw new GatewayError('forbidden', 'model_not_allowed', `${what} not allowed with '${label}'. ${allowed}`, {
    param: 'model',
  });
}
