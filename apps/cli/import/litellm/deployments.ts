import { configLimits } from '#libs/contracts/configs/config.ts';
import { parseLiteLlmModel } from '#libs/providers/litellm-names.ts';
import { deploymentAdvice } from './known-fields.ts';
import { readDeploymentLimits, type Limits } from './limits.ts';
import { readModelFacts, type ModelFacts } from './model-info.ts';
import { lookUp, type SourceNode } from './source-node.ts';
import { readTargetMembers, type Members } from './target-members.ts';
import type { Variables } from './variables.ts';
import { readCredential, type FindParam, type VirtualKeys } from './virtual-keys.ts';

/** One entry of `model_list`: a model at a provider, with what the router knows about it. */
export type Deployment = {
  node: SourceNode;
  /** `model_info.id`, which fallbacks can name. */
  id: string | null;
  virtualKey: string;
  /** The model's name at the provider. `*` stands for the part that matched. */
  model: string;
  members: Members;
  order: number | null;
  weight: number | null;
  rpm: number | null;
  tpm: number | null;
};

/** The entries of one `model_name`. */
export type ModelGroup = { name: string; deployments: Deployment[]; facts: ModelFacts };

const deploymentsMax = 2_000;
const nameLengthMax = 200;

type Parts = {
  virtualKeys: VirtualKeys;
  variables: Variables;
  limits: Limits;
  credentials: ReadonlyMap<string, SourceNode>;
};

/** Reads `model_list`. An entry that cannot be called is left out, and its line says why. */
export function readDeployments(list: SourceNode, parts: Parts): Map<string, ModelGroup> {
  const groups = new Map<string, ModelGroup>();
  for (const [index, node] of list.items().entries()) {
    if (index >= deploymentsMax) {
      node.unsupported(`An import has at most ${deploymentsMax} entries. Split the file.`);
      continue;
    }
    readDeployment(node, parts, groups);
  }
  return groups;
}

function readDeployment(node: SourceNode, parts: Parts, groups: Map<string, ModelGroup>): void {
  const [nameNode, params, info] = ['model_name', 'litellm_params', 'model_info'].map((name) => node.member(name)) as [
    SourceNode,
    SourceNode,
    SourceNode,
  ];
  const leaveOut = (at: SourceNode, reason: string): void => {
    at.unsupported(reason);
    node.withdraw('Its entry is left out.');
  };
  const name = nameNode.text();
  const modelNode = params.member('model');
  const model = modelNode.text();
  if (name === null) return leaveOut(nameNode.isGiven ? nameNode : node, 'The entry has no model_name.');
  if (model === null) return leaveOut(modelNode.isGiven ? modelNode : node, 'The entry has no litellm_params.model.');
  const nameProblem = describeNameProblem(name, model);
  if (nameProblem !== null) return leaveOut(nameNode, nameProblem);

  const stored = readStoredCredential(params, parts.credentials);
  if (stored === undefined) {
    return leaveOut(params.member('litellm_credential_name'), 'credential_list has no credential of this name.');
  }
  const pick = (param: string): SourceNode => {
    const own = params.member(param);
    return own.isGiven || stored === null ? own : stored.member(param);
  };
  const providerNode = params.member('custom_llm_provider');
  const parsed = parseLiteLlmModel(model, {
    namedProvider: providerNode.isGiven ? providerNode.text() : null,
    hasAddress: pick('api_base').isGiven || pick('base_url').isGiven,
  });
  if ((groups.get(name)?.deployments.length ?? 0) >= configLimits.leavesMax) {
    return leaveOut(nameNode, `A model has at most ${configLimits.leavesMax} targets.`);
  }
  if (model.length > nameLengthMax) {
    return leaveOut(modelNode, `The name of a model has at most ${nameLengthMax} characters.`);
  }
  if (parsed === null || parsed.model === '') {
    return leaveOut(modelNode, describeUnknownProvider(model));
  }
  const remarks = parsed.isGuess
    ? ['Called as an OpenAI-compatible server, because Sluice does not know this provider. Check that it has this API.']
    : [];
  const credential = readCredential(parsed, pick, parts.variables, remarks);
  if ('missing' in credential) return leaveOut(modelNode, credential.missing);

  const group = groups.get(name) ?? {
    name,
    deployments: [],
    facts: { description: null, capabilities: {}, price: {} },
  };
  groups.set(name, group);
  // Older files have weights and limits next to `litellm_params`.
  const findRouting = (param: string): SourceNode => {
    const [first, second] = [params.member(param), node.member(param)];
    if (first.isGiven) second.same('litellm_params has it too, which counts.');
    return first.isGiven ? first : second;
  };
  const idNode = info.member('id');
  const deployment: Deployment = {
    node,
    id: idNode.isGiven ? idNode.text() : null,
    virtualKey: parts.virtualKeys.slug(credential),
    model: parsed.model,
    members: readTargetMembers(params),
    ...readRouting(findRouting),
  };
  group.deployments.push(deployment);
  readModelFacts(info, params, group.facts);
  readDeploymentLimits(deployment, findRouting, parts.limits);
  for (const each of [nameNode, providerNode]) each.same();
  idNode.same('Fallbacks that name it have its target.');
  modelNode.translated(remarks.length === 0 ? null : remarks.join(' '));
  adviseOnRest(node, params, info);
}

const countStars = (text: string): number => text.split('*').length - 1;

function describeNameProblem(name: string, model: string): string | null {
  if (name.length > nameLengthMax) return `A model's name has at most ${nameLengthMax} characters.`;
  if (name.startsWith('@')) return "A model's name cannot start with @, which names a virtual key in Sluice.";
  if (/[\s\p{C}]/u.test(name)) return 'The name of a model cannot contain spaces.';
  if (countStars(name) > 1 || countStars(model) > 1) return 'A name can have one *. Write one entry per prefix.';
  if (countStars(model) > countStars(name)) return 'litellm_params.model has a *, and model_name has none for it.';
  return null;
}

const describeUnknownProvider = (model: string): string =>
  model.includes('/')
    ? 'Sluice does not have this provider. If it has an OpenAI-compatible API, add its address as api_base.'
    : 'The provider cannot be determined. Write provider/model, with one entry for each provider.';

/** The stored credential that an entry names; null for none, undefined for one that does not exist. */
function readStoredCredential(
  params: SourceNode,
  credentials: ReadonlyMap<string, SourceNode>,
): SourceNode | null | undefined {
  const node = params.member('litellm_credential_name');
  const name = node.isGiven ? node.text() : null;
  if (name === null) return null;
  const found = credentials.get(name);
  if (found !== undefined) node.same();
  return found;
}

function readRouting(find: FindParam): Pick<Deployment, 'order' | 'weight' | 'rpm' | 'tpm'> {
  const read = (name: string): number | null => (find(name).isGiven ? find(name).number() : null);
  const routing = { order: read('order'), weight: read('weight'), rpm: read('rpm'), tpm: read('tpm') };
  for (const name of ['order', 'weight']) find(name).same();
  return routing;
}

/** The lines of fields that are known and have no counterpart. */
function adviseOnRest(node: SourceNode, params: SourceNode, info: SourceNode): void {
  for (const each of [...params.members(), ...info.members(), ...node.members()]) {
    const advice = lookUp(deploymentAdvice, each.name);
    if (advice === undefined) continue;
    const [outcome, text] = advice;
    each[outcome](text);
  }
}
