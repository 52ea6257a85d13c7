import { z } from 'zod';
import { ModelPriceRow } from '#libs/prices/price-table.ts';
import { WorkspaceRole } from '../people/people.ts';
import { addBreach, anyObject, asGiven, integer, text } from '../scalars.ts';
import { configLimits, configMembers } from './config.ts';

// Public models: names that clients send as `model`, and the targets that serve them. The routing members are those of a
// config (libs/contracts/configs/config.ts), with a `model` at each target.

const publicModelLimits = { nameLengthMax: 200, allowedMax: 1_000, priceBytesMax: 8_192 } as const;

/** Invisible characters would make two names look alike. */
const nameShape = /^(?!@)[^\s\p{C}]+$/u;

const publicName = () =>
  text({ min: 1, max: publicModelLimits.nameLengthMax }).check((context) => {
    const { value } = context;
    if (nameShape.test(value) && value.split('*').length <= 2) return;
    addBreach(context, {
      path: [],
      code: 'invalid_value',
      text: (name) =>
        `Invalid ${name()}: expected a name such as 'gpt-4o' or 'openai/*'. It cannot begin with '@' or contain spaces, and at most one '*' is allowed.`,
    });
  });

const count = () => integer({ min: 1, max: 1_000_000_000 }).optional();
const flag = () => z.boolean().optional();

const Capabilities = z.strictObject({
  context_window: count().describe('The maximum number of tokens of input and output together.'),
  max_output_tokens: count(),
  tools: flag(),
  vision: flag(),
  reasoning: flag(),
  structured_output: flag(),
});

const names = () =>
  z
    .array(text({ min: 1, max: 200 }))
    .max(publicModelLimits.allowedMax)
    .optional();

const Allowed = z.strictObject({
  workspaces: names().describe('IDs of workspaces. Only useful for a model of the organisation.'),
  keys: names().describe('IDs of API keys, or of users who sign in with a token.'),
  roles: z.array(WorkspaceRole).max(10).optional().describe('Roles of users. A service key has no role.'),
});

const Price = ModelPriceRow.check((context) => {
  const { priceBytesMax } = publicModelLimits;
  if (JSON.stringify(context.value).length <= priceBytesMax) return;
  addBreach(context, {
    path: [],
    code: 'invalid_value',
    text: (name) => `Invalid ${name()}: a price can have at most ${priceBytesMax} bytes of JSON.`,
  });
});

/** Members of the body of POST /public-models. Null removes an optional member. */
export const publicModelFields = {
  name: publicName().describe(
    'The name that clients send as `model`. One `*` makes it a wildcard, such as `openai/*`. Unique in its workspace.',
  ),
  display_name: text({ min: 1, max: 200 }).nullish().describe('Shown in lists of models. Default: the name.'),
  description: text({ max: 2_000 }).nullish(),
  strategy: anyObject()
    .nullish()
    .describe('How a target is selected, as in a config. Default: several targets are a fallback in order.'),
  targets: z
    .array(anyObject())
    .min(1)
    .max(configLimits.leavesMax)
    .describe(
      'Targets as in a config. `model` is the model at the target: by default the public name. In a wildcard, `*` in it is replaced by the part of the name that matched.',
    ),
  retry: asGiven(configMembers.retry).nullish(),
  cache: asGiven(configMembers.cache).nullish(),
  request_timeout: configMembers.request_timeout.nullish(),
  timeouts: asGiven(configMembers.timeouts).nullish(),
  capabilities: Capabilities.nullish(),
  price: asGiven(Price)
    .nullish()
    .describe('Replaces the listed price for calls through this name, in the form of a model in a price table.'),
  allowed: Allowed.nullish().describe(
    'Who can use the name. A caller must be in each list that is set. Default: everyone.',
  ),
};

export type PublicModelDocument = z.output<z.ZodObject<typeof publicModelFields>>;

/** The members that determine where calls go. */
export const routingMembers = ['strategy', 'targets', 'retry', 'cache', 'request_timeout', 'timeouts'] as const;
export type PublicModelRouting = Pick<PublicModelDocument, 'targets'> &
  Partial<Pick<PublicModelDocument, (typeof routingMembers)[number]>>;

/** A public model in answers. Secrets in the parameters and guardrails of its targets are left out. */
export const PublicModelObject = z.object({
  id: z.string(),
  object: z.literal('public-model'),
  slug: z.string(),
  name: z.string(),
  display_name: z.string().nullable(),
  description: z.string().nullable(),
  organisation_id: z.string(),
  workspace_id: z.string().nullable().describe('Null for a model of the organisation.'),
  strategy: anyObject().nullable(),
  targets: z.array(anyObject()),
  retry: anyObject().nullable(),
  cache: z.union([z.string(), anyObject()]).nullable(),
  request_timeout: z.int().nullable(),
  timeouts: anyObject().nullable(),
  capabilities: Capabilities.nullable(),
  price: anyObject().nullable(),
  allowed: Allowed.nullable(),
  owner_id: z.string().nullable(),
  updated_by: z.string().nullable(),
  created_at: z.iso.datetime(),
  last_updated_at: z.iso.datetime(),
});

/** The part of a name in place of the `*` of a wildcard, at least one character; null if it does not match. */
export function matchWildcard(wildcard: string, name: string): string | null {
  const star = wildcard.indexOf('*');
  const [start, end] = [wildcard.slice(0, star), wildcard.slice(star + 1)];
  if (name.length < wildcard.length || !name.startsWith(start) || !name.endsWith(end)) return null;
  return name.slice(star, name.length - end.length);
}

/** The names of public models that a caller can use. */
export type PublicNames = { readonly exact: ReadonlySet<string>; readonly wildcards: readonly string[] };

export const isPublicName = ({ exact, wildcards }: PublicNames, name: string): boolean =>
  exact.has(name) || wildcards.some((wildcard) => matchWildcard(wildcard, name) !== null);

/**
 * The config that a public model stands for, as its author would have written it: `model` becomes an override, and several
 * targets without a strategy are a fallback. `called`: the name in the call; `matched`: the part of it in place of the
 * wildcard, null for an exact name. Pure. Malformed targets are returned as they are, so that the checks of configs
 * report them.
 */
export function toModelConfig(routing: PublicModelRouting, called: string, matched: string | null): object {
  const fill = (model: unknown): unknown =>
    matched === null || typeof model !== 'string' ? model : model.replace('*', () => matched);
  const toNode = (node: unknown, depth: number): unknown => {
    // Deeper targets are refused by the limit of configs, so they need no conversion.
    if (typeof node !== 'object' || node === null || Array.isArray(node) || depth > configLimits.depthMax + 1)
      return node;
    const { model, targets, ...rest } = node as Record<string, unknown>;
    const params = rest['override_params'];
    return {
      ...rest,
      ...(model === undefined ? {} : { override_params: { ...(params as object | undefined), model: fill(model) } }),
      ...(targets === undefined ? {} : toTargets(targets, rest['strategy'], depth)),
    };
  };
  const toTargets = (targets: unknown, strategy: unknown, depth: number): object => ({
    ...(Array.isArray(targets) && targets.length > 1 && (strategy ?? null) === null
      ? { strategy: { mode: 'fallback' } }
      : {}),
    targets: Array.isArray(targets) ? targets.map((target) => toNode(target, depth + 1)) : targets,
  });
  const { targets, ...settings } = routing;
  const given = Object.entries(settings).filter(([, value]) => value !== undefined && value !== null);
  return {
    ...Object.fromEntries(given),
    override_params: { model: called },
    ...toTargets(targets, settings.strategy, 0),
  };
}
