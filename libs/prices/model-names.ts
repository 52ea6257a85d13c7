// Providers and clouds write the same model in many ways. Each step below removes one part that never changes the
// price.

/** `us.anthropic.claude-…`, `apac.…`: the regions of an inference profile. */
const region = /^(?:us|eu|apac|us-gov|global|jp|au|ca)\.(?=[a-z0-9]+\.)/;
/** `models/…`, `publishers/google/models/…`, `accounts/fireworks/models/…`, an ARN, `openai/…`. */
const folder = /^.*\//;
/** `anthropic.claude-…`, not the point of `gpt-4.1`. */
const vendor = /^[a-z]+\d*\.(?=[a-z])/;
/** `…-v1:0`, `…-v2`, `…:1`. */
const revision = /(?:-v\d+)?:\d+$|-v\d+$/;
/** `…-2024-08-06`, `…-20241022`, `…@20241022`, `…@default`. */
const day = /(?:-20\d\d-\d\d-\d\d|-20\d{6}|@20\d{6}|@default)$/;
const newest = /-latest$/;
/** Google's stable versions: `gemini-2.0-flash-001`. Previews may have another price. */
const stable = /-00\d$/;

/** `ft:gpt-4o-mini-2024-07-18:acme::abc`. Its price is in the row of its base model for fine-tuned models. */
const fineTuned = /^ft:([^:]+)/;

/**
 * Returns the names under which a model can be in a price list, the most exact first. A name with more parts than the
 * list has (a date, a region) falls back to the name without them. Nothing else is guessed, because a wrong price is
 * worse than none.
 */
export function listCandidateNames(model: string): readonly string[] {
  const name = model.toLowerCase();
  const base = fineTuned.exec(name)?.[1];
  if (base !== undefined) return [name, ...shorter(base).map((each) => `ft:${each}`)];
  return shorter(name);
}

/**
 * Whether a rule, such as a policy or a list of excluded models, applies to a model: it has the same name, apart from
 * case, date, revision or region, or was fine-tuned from it. A rule with a date applies only to that date.
 */
export const isModelNamed = (model: string, ruleName: string): boolean => {
  const names = namesForRules(model);
  return ruleNames(ruleName).some((name) => names.has(name));
};

/** The names of a rule. If the rule applies to a model, one of them is among the model's `namesForRules`. */
export function ruleNames(ruleName: string): readonly string[] {
  const name = ruleName.toLowerCase();
  return [name, name.replace(folder, '')];
}

/**
 * One name for a model, whatever case, date, folder or region it is called with, so that another spelling does not
 * create another counter. Fine-tuned models count under their base. Revisions stay, because they can be different
 * models.
 */
export function commonModelName(model: string): string {
  const name = model.toLowerCase();
  const base = fineTuned.exec(name)?.[1];
  if (base !== undefined) return `ft:${commonModelName(base)}`;
  return [folder, region, newest, day].reduce((left, part) => left.replace(part, ''), name);
}

// Many rules are compared with the model of one call.
let latest: { model: string; names: ReadonlySet<string> } = { model: '', names: new Set() };

/** All names by which a rule can refer to a model. */
export function namesForRules(model: string): ReadonlySet<string> {
  if (latest.model === model) return latest.names;
  const base = fineTuned.exec(model.toLowerCase())?.[1];
  const names = new Set([...listCandidateNames(model), ...(base === undefined ? [] : shorter(base))]);
  latest = { model, names };
  return names;
}

function shorter(name: string): readonly string[] {
  const names = new Set([name]);
  let heads = [name];
  for (const part of [folder, region, vendor]) {
    heads = [...heads, ...heads.map((head) => head.replace(part, ''))];
  }
  for (const head of heads) {
    names.add(head);
    let tail = head;
    for (const part of [newest, revision, day, revision, stable]) {
      tail = tail.replace(part, '');
      names.add(tail);
    }
  }
  return [...names];
}
