import { hash } from 'node:crypto';
import type { BreakerPolicy } from '#libs/contracts/configs/circuit-breaker.ts';
import type { Target } from '#libs/calls/call.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { createCircuit, type Circuit, type CircuitChange } from './circuit.ts';
import { forgetOne } from './forget-one.ts';
import { shortModel } from './short-model.ts';

/** The circuit of one credential, model and breaker policy. `id` is the same in every process. */
export type KnownCircuit = {
  id: string;
  credentialId: string;
  workspaceId: string;
  label: string;
  provider: string;
  model: string;
  circuit: Circuit;
  /** Why it opened most recently. */
  reason: string;
  /** When this process last changed it, in epoch milliseconds. */
  changedAtMs: number;
};

export type Circuits = {
  of: (target: Target, model: string, policy: BreakerPolicy) => KnownCircuit;
  all: () => Iterable<KnownCircuit>;
  /** Takes over the state that another process has found, by circuit ID. `untilMs` null: calls succeed again. */
  adopt: (id: string, untilMs: number | null) => void;
  /** Called for each change that originates in this process. */
  listen: (listener: (known: KnownCircuit, change: CircuitChange) => void) => void;
};

const circuitsMax = 5_000;

/** Makes the circuits of this process. If there are more than 5,000, the oldest closed ones are forgotten. */
export function createCircuits(clock: Clock): Circuits {
  const known = new Map<string, KnownCircuit>();
  const byId = new Map<string, KnownCircuit>();
  /** Open circuits of other processes that this process has not used yet. */
  const heard = new Map<string, number>();
  let listener: Parameters<Circuits['listen']>[0] | undefined;

  const meet = (target: Target, model: string, policy: BreakerPolicy, name: string): KnownCircuit => {
    const id = hash('sha256', name, 'base64url').slice(0, 22);
    const entry: KnownCircuit = {
      id,
      credentialId: target.credentialId ?? '',
      workspaceId: target.workspaceId ?? '',
      label: target.label,
      provider: target.provider,
      model,
      reason: '',
      changedAtMs: 0,
      circuit: createCircuit(policy, (change) => {
        entry.changedAtMs = clock.now();
        listener?.(entry, change);
      }),
    };
    const untilMs = heard.get(id);
    if (untilMs !== undefined) entry.circuit.adopt(untilMs);
    const isClosed = ({ circuit }: KnownCircuit): boolean => circuit.state(clock.now()) === 'closed';
    if (known.size >= circuitsMax) {
      const forgotten = forgetOne(known, isClosed);
      if (forgotten) byId.delete(forgotten.id);
    }
    known.set(name, entry);
    byId.set(id, entry);
    return entry;
  };

  return {
    of: (target, named, policy) => {
      const model = shortModel(named);
      const name = JSON.stringify([target.credentialId, policyName(policy), model]);
      return known.get(name) ?? meet(target, model, policy, name);
    },
    all: () => known.values(),
    adopt: (id, untilMs) => {
      byId.get(id)?.circuit.adopt(untilMs);
      if (untilMs === null) heard.delete(id);
      else {
        if (!heard.has(id) && heard.size >= circuitsMax) forgetOne(heard, () => true);
        heard.set(id, untilMs);
      }
    },
    listen: (next) => {
      listener = next;
    },
  };
}

const policyNames = new WeakMap<BreakerPolicy, string>();

function policyName(policy: BreakerPolicy): string {
  let name = policyNames.get(policy);
  if (name === undefined) {
    name = JSON.stringify(policy);
    policyNames.set(policy, name);
  }
  return name;
}
