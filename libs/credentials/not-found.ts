import { distance } from 'fastest-levenshtein';
import { NotInSnapshot } from '#libs/identity/not-in-snapshot.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { providerIds } from '#libs/providers/registry.ts';

/**
 * The refusal of a config's slug or ID. It is the same for one that never existed, was deleted, or belongs to another
 * workspace. `param` null: the config is the default of the call's key.
 */
export const noSuchConfig = (name: string, param: string | null): GatewayError =>
  new NotInSnapshot(
    'invalid_request',
    'config_not_found',
    param === null
      ? `The default config '${name.slice(0, 100)}' of this API key no longer exists. Send another config in x-gateway-config, or use a key with another default config.`
      : `There is no config '${name.slice(0, 100)}'. GET /v1/configs lists the configs that you can use. You can also send a config as JSON, such as {"virtual_key":"my-openai"}.`,
    { param: param ?? 'x-gateway-config' },
  );

/** The refusal of a stored config that this release does not understand. */
export const unreadableConfig = (slug: string, param: string | null): GatewayError =>
  new GatewayError(
    'unavailable',
    'config_unreadable',
    `This release cannot read the stored config '${slug}'. Store it again with PUT /v1/configs/${slug}.`,
    { param },
  );

/**
 * The refusal of a call, or of a record, that names a guardrail which does not exist: no call is made without its
 * checks. `param` null: the caller did not name it.
 */
export const noSuchGuardrail = (name: string, param: string | null): GatewayError =>
  new NotInSnapshot(
    'invalid_request',
    'guardrail_not_found',
    `There is no guardrail '${name.slice(0, 100)}' in this workspace. GET /v1/guardrails lists the guardrails that you can use.`,
    { param },
  );

/** The refusal of a call that needs a guardrail which this process cannot read. */
export const unreadableGuardrail = (slug: string): GatewayError =>
  new GatewayError(
    'unavailable',
    'guardrails_unreadable',
    `This release cannot read the guardrail '${slug}'. Store it again with PUT /v1/guardrails/${slug}.`,
  );

/** How a request names a provider, for messages. */
export const waysToNameProvider =
  'There are four ways to name one: a virtual key (header x-gateway-virtual-key, or the model as @virtual-key/model); ' +
  'x-gateway-provider with your provider key as Authorization: Bearer and the gateway key in x-gateway-api-key; ' +
  'x-gateway-config; or a provider and its key together with x-gateway-custom-host.';

/**
 * The refusal of a model in a call without a credential that is not the name of a public model which the caller can use.
 * `names`: those that the caller can use; the message has the most similar ones.
 */
export function noSuchModel(workspaceId: string, name: string, names: readonly string[]): GatewayError {
  const listed = nearestNames(name, names).map((each) => `'${each}'`);
  const remedy =
    listed.length === 0
      ? `The request does not name a provider either. ${waysToNameProvider}`
      : `Similar names: ${listed.join(', ')}. GET /v1/models lists all names that you can use.`;
  const message = `The model '${name.slice(0, 200)}' does not exist or you do not have access to it. ${remedy}`;
  // So that the lines of a batch do not all look for the same missing name.
  const id = `${workspaceId} ${name.slice(0, 200)}`;
  return new NotInSnapshot('not_found', 'model_not_found', message, { param: 'model', id });
}

const shownMax = 3;
/** The names that are compared, and the characters of each: about a millisecond. */
const comparedMax = 1_000;
const lengthMax = 64;
/** A name with more differences is not similar. */
const differencesMax = 12;

/** Returns the up to three names that differ least from a name (by Levenshtein distance), the most similar first. */
function nearestNames(wanted: string, names: readonly string[]): string[] {
  const shortened = (name: string): string => name.slice(0, lengthMax).toLowerCase();
  const given = shortened(wanted);
  return names
    .slice(0, comparedMax)
    .map((name) => ({ name, differences: distance(given, shortened(name)) }))
    .filter(({ differences }) => differences <= differencesMax)
    .sort((one, other) => one.differences - other.differences)
    .slice(0, shownMax)
    .map(({ name }) => name);
}

export const unknownProvider = (name: string, param: string): GatewayError =>
  new GatewayError(
    'invalid_request',
    'invalid_value',
    `There is no provider '${name.slice(0, 100)}'. Known providers: ${providerIds.join(', ')}.`,
    { param },
  );
