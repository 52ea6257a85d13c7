import { configLimits } from '#libs/contracts/configs/config.ts';
import { writeSpec } from '../../records/record-files.ts';
import type { Deployment, ModelGroup } from './deployments.ts';
import type { RecordDocument } from './record-document.ts';
import type { FallbackList, Routing } from './routing.ts';
import type { Members } from './target-members.ts';

/** The kind of the records that give models their public names. */
const modelKind = 'model';

/** A part of a model's strategy, with the number of its targets. */
type Part = { members: Members; leaves: number };

const { leavesMax } = configLimits;
const weightMax = 1_000_000;
const nameLengthMax = 200;
/** The statuses of a request that is too long, or that violates a policy of the provider. */
const requestStatuses = [400, 413];

/** The models of an import: one for each name in `model_list`, and one for each alias. */
export function toModelRecords(groups: ReadonlyMap<string, ModelGroup>, routing: Routing): RecordDocument[] {
  const models = new Models(groups, routing);
  const records = [...groups.values()].map((group) => models.record(group));
  const names = new Set(groups.keys());
  for (const { node, name, model } of routing.aliases) {
    const group = groups.get(model);
    if (names.has(name)) node.same('model_list has an entry of this name, which counts.');
    else if (group === undefined) node.unsupported('No entry of model_list that can be called has this name.');
    else {
      node.changed('Its own model with the same targets. Change both when you change one.');
      names.add(name);
      records.push(models.record(group, name));
    }
  }
  models.reportUnknown();
  return records;
}

/** The slug of a model: its name in the characters of slugs. */
const slugLengthMax = 60;
const toSlug = (name: string): string =>
  name
    .replaceAll('*', 'any')
    .replaceAll(/[^a-zA-Z0-9_-]+/g, '-')
    .replaceAll(/^-|-$/g, '')
    .slice(0, slugLengthMax) || 'model';

class Models {
  readonly #slugs = new Set<string>();
  readonly #groups: ReadonlyMap<string, ModelGroup>;
  readonly #routing: Routing;
  readonly #byId: ReadonlyMap<string, Deployment>;

  constructor(groups: ReadonlyMap<string, ModelGroup>, routing: Routing) {
    this.#groups = groups;
    this.#routing = routing;
    const all = [...groups.values()].flatMap(({ deployments }) => deployments);
    this.#byId = new Map(all.flatMap((deployment) => (deployment.id === null ? [] : [[deployment.id, deployment]])));
  }

  /** The record of a group, under its own name or an alias. */
  record(group: ModelGroup, name = group.name): RecordDocument {
    const { members, breaker } = this.#routing;
    const { description, capabilities, price } = group.facts;
    const routed = this.#withFallbacks(group);
    if (breaker !== null) {
      const strategy = (routed['strategy'] as Members | undefined) ?? { mode: 'single' };
      routed['strategy'] = { ...strategy, cb_config: breaker };
    }
    const spec = {
      name,
      ...(description === null ? {} : { description }),
      ...routed,
      ...members,
      ...(Object.keys(capabilities).length === 0 ? {} : { capabilities }),
      ...(Object.keys(price).length === 0 ? {} : { price }),
    };
    return { kind: modelKind, slug: this.#newSlug(toSlug(name)), spec: writeSpec(spec) };
  }

  #newSlug(base: string): string {
    let slug = base;
    for (let number = 2; this.#slugs.has(slug); number += 1) slug = `${base}-${number}`;
    this.#slugs.add(slug);
    return slug;
  }

  /** Reports the fallbacks of names that are not models. */
  reportUnknown(): void {
    const { fallbacks, requestFallbacks } = this.#routing;
    for (const lists of [fallbacks, requestFallbacks]) {
      for (const [name, all] of lists) {
        if (name === '*' || this.#groups.has(name)) continue;
        for (const { node } of all) node.unsupported('No entry of model_list that can be called has this name.');
      }
    }
  }

  #withFallbacks(group: ModelGroup): Members {
    const own = this.#part(group, null);
    const general = this.#fallbackLists(group.name);
    const ofRequests = this.#routing.requestFallbacks.get(group.name) ?? [];
    const parts = [own];
    const seen = new Set([group.name]);
    for (const list of general) this.#addParts(list, parts, seen);
    const isGeneral = parts.length > 1;
    for (const list of ofRequests) this.#addParts(list, parts, seen);
    if (ofRequests.length > 0 && parts.length > 1) {
      const when = isGeneral
        ? 'every failure, after the other fallbacks'
        : 'the statuses 400 and 413, whatever their reason';
      for (const { node } of ofRequests) node.changed(`Its models are tried after ${when}.`);
    }
    if (parts.length === 1) {
      const { targets } = own.members;
      return targets === undefined ? { targets: [own.members] } : own.members;
    }
    const strategy = isGeneral ? { mode: 'fallback' } : { mode: 'fallback', on_status_codes: requestStatuses };
    return { strategy, targets: parts.map(({ members }) => members) };
  }

  /** The fallbacks of a name. A model without its own has the fallbacks of all models. */
  #fallbackLists(name: string): FallbackList[] {
    const { fallbacks, defaultFallbacks } = this.#routing;
    return fallbacks.get(name) ?? fallbacks.get('*') ?? defaultFallbacks;
  }

  /** Adds the models of a list, each followed by its own fallbacks, as LiteLLM tries them. */
  #addParts({ node, names }: FallbackList, parts: Part[], seen: Set<string>): void {
    const unknown: string[] = [];
    let isCut = false;
    for (const name of names) {
      if (seen.has(name)) continue;
      seen.add(name);
      const part = this.#find(name);
      if (part === null) {
        unknown.push(name);
        continue;
      }
      const leaves = parts.reduce((sum, each) => sum + each.leaves, 0);
      if (parts.length > this.#routing.fallbacksMax || leaves + part.leaves > leavesMax) {
        isCut = true;
        break;
      }
      parts.push(part);
      for (const list of this.#routing.fallbacks.get(name) ?? []) this.#addParts(list, parts, seen);
    }
    if (unknown.length > 0) {
      const reason = `No entry of model_list that can be called has this name: ${unknown.join(', ')}.`;
      if (unknown.length === names.length) node.unsupported(reason);
      else node.changed(reason);
    } else if (isCut) node.changed(`Cut off after ${this.#routing.fallbacksMax} fallbacks and ${leavesMax} targets.`);
    else if (this.#routing.requestFallbacks.values().every((lists) => !lists.some((list) => list.node === node)))
      node.same();
  }

  /** What a fallback names: a group, an alias, an entry's ID, or a name that a wildcard matches. */
  #find(name: string): Part | null {
    if (name === '' || name.length > nameLengthMax) return null;
    const alias = this.#routing.aliases.find((each) => each.name === name)?.model;
    const group = this.#groups.get(name) ?? (alias === undefined ? undefined : this.#groups.get(alias));
    if (group !== undefined) return group.name.includes('*') ? null : this.#part(group, null);
    const deployment = this.#byId.get(name);
    if (deployment !== undefined && !deployment.model.includes('*')) return this.#leaf(deployment, null);
    const matches = [...this.#groups.values()].flatMap((each) => {
      const [before = '', after] = each.name.split('*');
      const fits = after !== undefined && name.length >= before.length + after.length;
      if (!fits || !name.startsWith(before) || !name.endsWith(after)) return [];
      return [
        {
          group: each,
          length: before.length + after.length,
          part: name.slice(before.length, name.length - after.length),
        },
      ];
    });
    const [longest] = matches.toSorted((a, b) => b.length - a.length);
    return longest === undefined ? null : this.#part(longest.group, longest.part);
  }

  /** The targets of a group: those of the lowest `order` first. `matched` replaces the `*` of a wildcard. */
  #part({ deployments }: ModelGroup, matched: string | null): Part {
    const orders = [...new Set(deployments.map(({ order }) => order ?? Infinity))].toSorted((a, b) => a - b);
    const levels = orders.map((order) =>
      this.#level(
        deployments.filter((each) => (each.order ?? Infinity) === order),
        matched,
      ),
    );
    const [first] = levels;
    if (levels.length === 1 && first !== undefined) return first;
    return {
      members: { strategy: { mode: 'fallback' }, targets: levels.map(({ members }) => members) },
      leaves: levels.reduce((sum, { leaves }) => sum + leaves, 0),
    };
  }

  /**
   * Deployments that share the calls by weight. If they have rates, a call that one of them rejects because its rate is used
   * up tries the others in order, because LiteLLM does not select a deployment whose rate is used up.
   */
  #level(deployments: readonly Deployment[], matched: string | null): Part {
    const leaves = deployments.map((deployment) => this.#leaf(deployment, matched).members);
    const [only] = leaves;
    if (leaves.length === 1 && only !== undefined) return { members: only, leaves: 1 };
    const weights = toWeights(deployments);
    const targets = leaves.map((leaf, index) => ({ ...leaf, ...(weights === null ? {} : { weight: weights[index] }) }));
    const balanced = { strategy: { mode: 'loadbalance' }, targets };
    const hasRates = deployments.some(({ rpm, tpm }) => rpm !== null || tpm !== null);
    if (!hasRates || leaves.length * 4 > leavesMax) return { members: balanced, leaves: leaves.length };
    return {
      members: { strategy: { mode: 'fallback', on_status_codes: [429] }, targets: [balanced, ...leaves] },
      leaves: leaves.length * 2,
    };
  }

  #leaf({ virtualKey, model, members }: Deployment, matched: string | null): Part {
    const { default_params: shared, ...others } = this.#routing.targetMembers;
    const { default_params: own, ...rest } = members;
    const defaults = { ...(shared as Members | undefined), ...(own as Members | undefined) };
    const leaf = {
      provider: `@${virtualKey}`,
      model: matched === null ? model : model.replace('*', () => matched),
      ...others,
      ...rest,
      ...(Object.keys(defaults).length === 0 ? {} : { default_params: defaults }),
    };
    return { members: leaf, leaves: 1 };
  }
}

/**
 * The weights of deployments, or null if they have equal shares: `weight` if the first one has it, or else rpm, or else tpm;
 * a deployment without the value gets no calls. So does LiteLLM (litellm/router_strategy/simple_shuffle.py).
 */
function toWeights(deployments: readonly Deployment[]): number[] | null {
  const [first] = deployments;
  const by = (['weight', 'rpm', 'tpm'] as const).find((name) => first?.[name] != null);
  if (by === undefined) return null;
  const weights = deployments.map((deployment) => deployment[by] ?? 0);
  const largest = Math.max(...weights);
  if (largest === 0) return null;
  return largest <= weightMax ? weights : weights.map((weight) => Math.ceil((weight / largest) * weightMax));
}
