/* oxlint-disable unicorn/no-thenable -- the member's name is the interface's */
import { expect, test } from 'vitest';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import { isReference, type Guardrail } from '#libs/contracts/configs/guardrails.ts';
import { addGuardrails, resolveGuardrails } from './add-guardrails.ts';
import { compileConfig } from './compile-config.ts';
import type { Leaf, PlanNode } from './plan.ts';

const planOf = (config: object) => compileConfig(ConfigInput.parse(config));
const check = (id: string, deny = true) => ({ contains: { operator: 'none', words: ['x'] }, id, deny });
const added = planOf({ input_guardrails: [check('in')], output_guardrails: [check('out')] }).leaves[0];

const idsOf = (entries: Leaf['inputGuardrails']) =>
  entries.map((entry) => (isReference(entry) ? entry.stored : entry.id));

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
    expect([idsOf(leaf.inputGuardrails)[0], idsOf(leaf.outputGuardrails)[0]]).toEqual(['in', 'out']);
  }
  expect(idsOf(plan.leaves[0].inputGuardrails)).toEqual(['in', 'own']);
});

test('the plan of a config is made once, and the original is not changed', () => {
  const plan = planOf({ virtual_key: 'a' });
  const guarded = addGuardrails(plan, added);
  expect(addGuardrails(plan, added)).toBe(guarded);
  expect(plan.leaves[0].inputGuardrails).toEqual([]);
});

test('references are replaced by the stored guardrails, in their places, and guardrails without checks are left out', () => {
  const stored = new Map([
    ['fruit', planOf({ input_guardrails: [check('stored')] }).leaves[0].inputGuardrails[0] as Guardrail],
    [
      'off',
      { ...(planOf({ input_guardrails: [check('off')] }).leaves[0].inputGuardrails[0] as Guardrail), checks: [] },
    ],
  ]);
  const find = (name: string): Guardrail => {
    const found = stored.get(name);
    if (found === undefined) throw new Error(`no ${name}`);
    return found;
  };
  const plan = planOf({ input_guardrails: [check('a'), 'fruit', { id: 'off' }], output_guardrails: [{ id: 'fruit' }] });
  expect(plan.namesGuardrails).toBe(true);
  const resolved = resolveGuardrails(plan, find);
  expect(resolved.namesGuardrails).toBe(false);
  expect(idsOf(resolved.leaves[0].inputGuardrails)).toEqual(['a', 'stored']);
  expect(idsOf(resolved.leaves[0].outputGuardrails)).toEqual(['stored']);
  expect(() => resolveGuardrails(planOf({ input_guardrails: ['gone'] }), find)).toThrow('no gone');
});
