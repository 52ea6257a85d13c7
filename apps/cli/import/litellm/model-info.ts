import { Big } from 'big.js';
import { lookUp, type SourceNode } from './source-node.ts';

/** What the entries of a name say about the model: its capabilities and its price. */
export type ModelFacts = {
  description: string | null;
  capabilities: Record<string, number | boolean>;
  price: Record<string, string>;
};

/** Capabilities by the member of `model_info`. */
const counts: Readonly<Record<string, string>> = {
  max_input_tokens: 'context_window',
  max_tokens: 'max_output_tokens',
  max_output_tokens: 'max_output_tokens',
};
const flags: Readonly<Record<string, string>> = {
  supports_function_calling: 'tools',
  supports_vision: 'vision',
  supports_reasoning: 'reasoning',
  supports_response_schema: 'structured_output',
};

const countMax = 1_000_000_000;

/** Prices in US dollars per token, by their names in a price table, where they are per million. */
const prices: Readonly<Record<string, string>> = {
  input_cost_per_token: 'input',
  output_cost_per_token: 'output',
  cache_read_input_token_cost: 'cached_input',
  cache_creation_input_token_cost: 'cache_write',
  output_cost_per_reasoning_token: 'reasoning',
};

/** The bounds of a price in a price table. */
const priceDecimals = 8;
const priceMax = 9_999_999;

/** Reads what an entry says about its model. `known` has the facts of earlier entries of the same name, which are used first. */
export function readModelFacts(info: SourceNode, params: SourceNode, known: ModelFacts): void {
  for (const node of info.members()) {
    const name = lookUp(counts, node.name) ?? lookUp(flags, node.name);
    if (name === undefined || !node.isGiven) continue;
    const value = Object.hasOwn(flags, node.name) ? node.flag() : toCount(node);
    if (value !== null) setOnce(node, known.capabilities, name, value);
  }
  for (const node of [...params.members(), ...info.members()]) {
    const name = lookUp(prices, node.name);
    const dollars = name === undefined || !node.isGiven ? null : node.number();
    if (name === undefined || dollars === null) continue;
    const perMillion = new Big(dollars).times(1_000_000).round(priceDecimals);
    if (perMillion.gt(priceMax)) node.unsupported(`A price is at most ${priceMax} dollars per million tokens.`);
    else setOnce(node, known.price, name, perMillion.toFixed());
  }
  const description = info.member('description');
  const text = description.isGiven ? description.text() : null;
  if (text === null) return;
  known.description ??= text.slice(0, 2_000);
  description.same();
}

function toCount(node: SourceNode): number | null {
  const count = node.number();
  if (count === null || (Number.isSafeInteger(count) && count > 0 && count <= countMax)) return count;
  node.unsupported('Expected a whole number of tokens.');
  return null;
}

function setOnce<Value>(node: SourceNode, facts: Record<string, Value>, name: string, value: Value): void {
  const earlier = facts[name];
  if (earlier !== undefined && earlier !== value) {
    node.changed(`A model has one value for this: the first one of its entries, ${String(earlier)}.`);
    return;
  }
  facts[name] = value;
  node.same();
}
