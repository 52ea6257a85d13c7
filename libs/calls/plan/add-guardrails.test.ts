/* oxlint-disable unicorn/no-thenable -- the member's name is the interface's */
import { expect, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/config.ts';
import { addGuardrails } from './add-guardrails.ts';
import { compileConfig } from './compile-config.ts';
import type { Leaf, PlanNode } from './plan.ts';

const planOf = (config: object) => compileConfig(ConfigInput.parse(config));
const check = (id: string, deny = true) => ({ contains: { operator: 'none', words: ['x'] }, id, deny });
const added = planOf({ input_guardrails: [check('in')], output_guardrails: [check('out')] }).leaves[0];

const leavesOf = (node: PlanNode): Leaf[] => {
  switch (node.kind) {
    case 'leaf':
      return [node.leaf];
    case 'fallback':
      return node.options.flatMap(leavesOf);
    case 'loadbalance':
      return node.options.flatMap((option) => leavesOf(option.node));
    case 'conditional':
      return [...node.conditions.map((condition) => condition.node), node.otherwise].flatMap(leavesOf);
  }
};

test('every target of every strategy has them before its own', () => {
  const config = {
    strategy: { mode: 'fallback' },
    targets: [
      { virtual_key: 'a', input_guardrails: [check('own')] },
      { strategy: { mode: 'loadbalance' }, targets: [{ virtual_key: 'b' }, { virtual_key: 'c' }] },
      {
        strategy: { mode: 'conditional', conditions: [{ query: { 'metadata.a': 'b' }, then: 'd' }], default: 'e' },
        targets: [
          { name: 'd', virtual_key: 'd' },
          { name: 'e', virtual_key: 'e' },
        ],
      },
    ],
  };
  const plan = addGuardrails(planOf(config), added);
  const leaves = leavesOf(plan.root);
  expect(new Set(leaves)).toEqual(new Set(plan.leaves));
  expect(plan.leaves.map((leaf) => leaf.credentials.virtualKey)).toEqual(['a', 'b', 'c', 'd', 'e']);
  for (const leaf of leaves) {
    expect([leaf.inputGuardrails[0]?.id, leaf.outputGuardrails[0]?.id, leaf.answersWhole]).toEqual(['in', 'out', true]);
  }
  expect(plan.leaves[0].inputGuardrails.map(({ id }) => id)).toEqual(['in', 'own']);
});

test('the plan of a config is made once, and is left as it was', () => {
  const plan = planOf({ virtual_key: 'a' });
  const guarded = addGuardrails(plan, added);
  expect(addGuardrails(plan, added)).toBe(guarded);
  expect(plan.leaves[0].inputGuardrails).toEqual([]);
});

test('only those of answers that deny make a stream be asked for whole', () => {
  const of = (guardrail: object) => planOf({ output_guardrails: [guardrail] }).leaves[0];
  const isWhole = (guardrail: object) => addGuardrails(planOf({}), of(guardrail)).leaves[0].answersWhole;
  expect([isWhole(check('a')), isWhole(check('a', false)), isWhole({ ...check('a'), async: true })]).toEqual([
    true,
    false,
    false,
  ]);
});
