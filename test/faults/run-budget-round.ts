import { randomUUID } from 'node:crypto';
import { Big } from 'big.js';
import { sql } from 'kysely';
import { isTerminal } from '#libs/batches/batch/batch.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import { leaseMs } from '#libs/limits/counter.ts';
import { checkBatch, type BatchEvidence } from './check-batch.ts';
import { checkModels, checkResidue, collectEvidence } from './collect-evidence.ts';
import { createRandom } from './random.ts';
import type { Rig } from './rig/start-rig.ts';
import { setExpiry } from './run-round.ts';
import { callsMax } from './settings.ts';
import { killWorker } from './strike.ts';
import { writeInput } from './write-input.ts';

export type BudgetPlan = {
  seed: number;
  lines: number;
  measure: 'tokens' | 'cost';
  latencyMs: number;
  /** Share of what all lines would use. */
  share: number;
  /** What lines do that the budget has nothing left for: they fail, or wait until it is raised. */
  whenUsedUp: 'fail' | 'wait';
  /** Each strikes when this share of the lines has a result. The first of those left strikes while lines wait. */
  kills: readonly { at: number; whom: 'worker-0' | 'worker-1' | 'api' | 'postgres' }[];
};

type Used = { input: number; output: number };

/** Output of a call at most, and more than a call of this round can have as input, by what is reserved for it. */
const maxTokens = 60;
const largest: Used = { input: 120, output: maxTokens };
/** What a line uses at most, for the size of the budget. */
const usual: Used = { input: 12, output: 50 };
/** Longer than any batch of a plan takes. */
const endMs = 120_000;
/** Leases of killed processes end after 15 s, others are returned within a second; a busy machine gets twice as long. */
const freeMs = 30_000;
/** A process returns what it had leased for a call about a second after it. */
const callEveryMs = 3_000;

/** How long a batch is watched while its lines wait. */
const watchMs = 5_000;

/** Pure: the same seed gives the same plan. */
export function planBudgetRound(
  seed: number,
  linesMax: number,
  whenUsedUp: BudgetPlan['whenUsedUp'] = 'fail',
): BudgetPlan {
  const random = createRandom(seed);
  return {
    seed,
    lines: random.between(Math.ceil(linesMax / 2), linesMax),
    measure: random.pick(['tokens', 'cost']),
    latencyMs: random.between(50, 300),
    share: random.between(30, 90) / 100,
    whenUsedUp,
    kills: Array.from({ length: random.between(1, 4) }, () => ({
      at: random.next() * 0.8,
      whom: random.pick(['worker-0', 'worker-0', 'worker-1', 'api', 'postgres']),
    })),
  };
}

/**
 * A batch and live calls under one budget that is too small for them, while processes are killed. What was really used,
 * as the provider counted it, must not exceed the budget; what killed processes held must be bounded; and afterwards all
 * that is left must be usable. Where lines wait, the budget is raised while they do, and then none of them may have failed.
 * Returns descriptions of what was violated.
 */
export async function runBudgetRound(rig: Rig, plan: BudgetPlan): Promise<{ violations: string[]; story: string }> {
  const name = `budget-${plan.seed}-${randomUUID().slice(0, 8)}`;
  const weigh = ({ input, output }: Used): Big =>
    plan.measure === 'tokens' ? new Big(input + output) : new Big(input + 2 * output).div(10_000);
  const limit = weigh(usual).times(Math.ceil(plan.lines * plan.share));
  const policyId = await createBudget(rig, plan, name, limit);
  // Processes learn of a policy within a second; those that start afterwards know it from the first call on.
  rig.workers[1].wake();
  await setExpiry(rig, null);
  await Promise.all([rig.api, ...rig.workers].map((process) => process.terminate(0)));
  await rig.untilReady();
  await rig.resetCalls();

  const model = `@simulator/sim-small+${plan.latencyMs}ms`;
  const input = writeInput({ name, lines: plan.lines, model, maxTokens });
  const { id: fileId } = await rig.client.upload(`${name}.jsonl`, input, name);
  const { id: batchId } = await rig.client.createBatch(
    {
      input_file_id: fileId,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
      gateway_options: { metadata: { round: name }, on_budget_exceeded: plan.whenUsedUp },
    },
    { idempotencyKey: name, ownKey: false },
  );
  const live = createLiveCalls(rig, name, model);
  // Enough for every line twice and for what killed processes take with them.
  const raised = limit.plus(weigh(largest).times(4 * plan.lines));
  const raise = (): Promise<string[]> => raiseBudget(rig, policyId, { limit, raised });
  const { seen, problems, isRaised, killed } = await strikeUntilEnd(rig, plan, { batchId, live, raise });
  const limitNow = isRaised ? raised : limit;
  await rig.untilReady();
  const violations = await checkResidue(rig, batchId);
  const evidence: BatchEvidence = { ...(await collectEvidence(rig, batchId)), input, seen };
  violations.push(...problems, ...checkBatch(evidence), ...checkCodes(plan, evidence));
  const counter = isRaised
    ? await untilReturned(rig, policyId, live)
    : await useTheRest(rig, policyId, limit, weigh(largest), live);

  const spent = await whatWasSpent(rig, name, weigh, new Map([...usedByLine(name, evidence), ...live.used]));
  const { used, assumed, unconfirmed, leased } = counter;
  // Without a raise, the last calls were refused just now, and what is left was leased for them.
  if (isRaised && leased > 0) violations.push(`${leased} processes still hold a part of the budget`);
  const fixed = (amount: Big): string => amount.toFixed();
  if (spent.least.gt(used)) violations.push(`${fixed(spent.least)} were used, and ${fixed(used)} are counted`);
  if (used.gt(limitNow)) violations.push(`${fixed(used)} are counted, and the budget is ${fixed(limitNow)}`);
  const settled = used.minus(assumed).minus(unconfirmed);
  if (settled.gt(spent.most))
    violations.push(`${fixed(settled)} are counted as settled, and at most ${fixed(spent.most)} were used`);
  // What docs/limits.md says that a killed process takes with it: its calls under way, and what it had leased ahead.
  const lost = weigh(largest).times(callsMax).plus(limitNow.div(8)).times(killed.length);
  if (assumed.gt(lost)) violations.push(`${fixed(assumed)} are taken as used by killed processes`);
  if (!isRaised && limit.minus(used).gte(weigh(largest)))
    violations.push(`${fixed(limit.minus(used))} of the budget are left, and calls are refused`);
  violations.push(...(await checkModels(rig)), ...rig.takeCrashes());
  const { completed, failed } = evidence.batch.request_counts;
  const story =
    `${plan.measure} ${fixed(limit)}${isRaised ? `, raised to ${fixed(raised)}` : ''}: used ${fixed(used)}, of that assumed ${fixed(assumed)}, really at least ` +
    `${fixed(spent.least)}; ${completed} lines completed, ${failed} refused; killed: ` +
    `${killed.join(' ')}; ${live.used.size} live calls`;
  return { violations, story };
}

async function createBudget(rig: Rig, plan: BudgetPlan, name: string, limit: Big): Promise<string> {
  const response = await fetch(`${rig.baseUrl}/policies/usage-limits`, {
    method: 'POST',
    headers: { authorization: `Bearer ${rig.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({
      name,
      type: plan.measure,
      credit_limit: limit.toNumber(),
      conditions: [{ key: 'metadata.round', value: name }],
      group_by: [],
    }),
  });
  const { id } = (await response.json()) as { id?: string };
  if (id === undefined) throw new Error(`no policy: ${response.status}`);
  return id;
}

/** Live calls under the budget of the round, and what each has used that was answered. */
function createLiveCalls(rig: Rig, name: string, model: string) {
  const used = new Map<string, Used>();
  let sent = 0;
  return {
    used,
    /** One call; its status, or 0 when the connection broke. */
    async call(): Promise<number> {
      sent += 1;
      const user = `${name}/live-${sent}`;
      const body = { model, user, max_tokens: maxTokens, messages: [{ role: 'user', content: `Call ${sent}.` }] };
      const headers = {
        authorization: `Bearer ${rig.key}`,
        'content-type': 'application/json',
        'x-gateway-metadata': JSON.stringify({ round: name }),
      };
      try {
        const response = await fetch(`${rig.baseUrl}/chat/completions`, {
          method: 'POST',
          headers,
          body: JSON.stringify(body),
        });
        const { usage } = (await response.json()) as { usage?: { prompt_tokens: number; completion_tokens: number } };
        if (usage) used.set(user, { input: usage.prompt_tokens, output: usage.completion_tokens });
        return response.status;
      } catch {
        return 0;
      }
    },
  };
}

type LiveCalls = ReturnType<typeof createLiveCalls>;

type Struck = {
  seen: BatchEvidence['seen'];
  problems: string[];
  isRaised: boolean;
  killed: string[];
};

/**
 * Polls the batch until its end, kills as planned, and makes a live call with every look. Once lines have waited for a
 * while, and the next process was killed meanwhile, the budget is raised.
 */
async function strikeUntilEnd(
  rig: Rig,
  plan: BudgetPlan,
  { batchId, live, raise }: { batchId: string; live: LiveCalls; raise: () => Promise<string[]> },
): Promise<Struck> {
  const kill: Record<string, () => Promise<void>> = {
    'worker-0': () => killWorker(rig, { worker: 0, downMs: 0 }, true),
    'worker-1': () => killWorker(rig, { worker: 1, downMs: 0 }, true),
    api: () => rig.api.kill(0),
    postgres: () => rig.postgres.kill(0),
  };
  const left = plan.kills.toSorted((a, b) => a.at - b.at);
  const seen: BatchEvidence['seen'][number][] = [];
  const struck: Struck = { seen, problems: [], isRaised: false, killed: [] };
  const killNext = async (): Promise<void> => {
    const { whom } = left.shift() ?? { whom: 'worker-0' };
    struck.killed.push(whom);
    await kill[whom]?.();
  };
  let deadline = performance.now() + endMs;
  const calls: Promise<number>[] = [];
  for (;;) {
    const batch = await rig.client.retrieveBatch(batchId);
    seen.push(batch);
    const { completed, failed } = batch.request_counts;
    const [next] = left;
    if (next && completed + failed > next.at * plan.lines) await killNext();
    if (isTerminal(batch.status)) break;
    if (performance.now() > deadline) throw new Error(`the batch is still ${batch.status}`);
    if (
      plan.whenUsedUp === 'wait' &&
      !struck.isRaised &&
      batch.waits.some(({ reason }) => reason === 'usage_limit_exceeded')
    ) {
      await killNext();
      await sleep(watchMs);
      struck.problems.push(...(await raise()));
      struck.isRaised = true;
      deadline = performance.now() + endMs;
    }
    // What comes after the raise is for the lines.
    if (!struck.isRaised) calls.push(live.call());
    await sleep(50);
  }
  await Promise.all(calls);
  if (plan.whenUsedUp === 'wait' && !struck.isRaised) struck.problems.push('no line waited for the budget');
  return struck;
}

/** Checks that what waiting lines left is within the budget, and raises it. */
async function raiseBudget(
  rig: Rig,
  policyId: string,
  { limit, raised }: { limit: Big; raised: Big },
): Promise<string[]> {
  await rig.untilReady();
  const { used } = await readCounter(rig, policyId);
  const response = await fetch(`${rig.baseUrl}/policies/usage-limits/${policyId}`, {
    method: 'PUT',
    headers: { authorization: `Bearer ${rig.key}`, 'content-type': 'application/json' },
    body: JSON.stringify({ credit_limit: raised.toNumber() }),
  });
  if (!response.ok) throw new Error(`the budget cannot be raised: ${response.status} ${await response.text()}`);
  return used.gt(limit) ? [`while lines waited, ${used.toFixed()} of ${limit.toFixed()} were used`] : [];
}

type Counter = { used: Big; assumed: Big; unconfirmed: Big; leased: number };

async function readCounter(rig: Rig, policyId: string): Promise<Counter> {
  const { rows } = await sql<{ used: string; assumed: string; unconfirmed: string; leased: number }>`
    select used::text, assumed::text, unconfirmed::text, (select count(*)::int from jsonb_each(leases) as lease
      where lease.value ->> 'amount' <> '0' and not (lease.value ->> 'isAssumed')::boolean) as leased
    from limit_counter where limit_id = ${policyId}`.execute(rig.db);
  const [row = { used: '0', assumed: '0', unconfirmed: '0', leased: 0 }] = rows;
  const { used, assumed, unconfirmed, leased } = row;
  return { used: new Big(used), assumed: new Big(assumed), unconfirmed: new Big(unconfirmed), leased };
}

/**
 * What is counted once no process holds anything of the budget, or after the time that this may take. What a killed process
 * had leased is taken as used by the next report of another one, so there is a call for that.
 */
async function untilReturned(rig: Rig, policyId: string, live: LiveCalls): Promise<Counter> {
  const deadline = performance.now() + freeMs;
  let nextCallAt = performance.now() + leaseMs;
  for (;;) {
    const counter = await readCounter(rig, policyId);
    const nowMs = performance.now();
    if (counter.leased === 0 || nowMs > deadline) return counter;
    if (nowMs > nextCallAt) {
      nextCallAt = nowMs + callEveryMs;
      await live.call();
    }
    await sleep(200);
  }
}

/** Calls until the budget is used up, and what is then counted: when less than `enough` is left, or nothing comes free. */
async function useTheRest(rig: Rig, policyId: string, limit: Big, enough: Big, live: LiveCalls): Promise<Counter> {
  let deadline = performance.now() + freeMs;
  for (;;) {
    const statuses = await Promise.all([live.call(), live.call(), live.call(), live.call()]);
    if (statuses.includes(200)) deadline = performance.now() + freeMs;
    // Refused calls make a process lease the rest, which it returns only when no further calls come.
    const counter = await (statuses.includes(200) ? readCounter(rig, policyId) : untilReturned(rig, policyId, live));
    const isUsedUp = counter.leased === 0 && limit.minus(counter.used).lt(enough);
    if (isUsedUp || performance.now() > deadline) return counter;
  }
}

function usedByLine(name: string, { output }: BatchEvidence): [string, Used][] {
  type Line = {
    response: { body: { usage: { prompt_tokens: number; completion_tokens: number } } };
    custom_id: string;
  };
  const lines = (output?.toString('utf8') ?? '').split('\n').filter((line) => line !== '');
  return lines.map((text): [string, Used] => {
    const { custom_id: customId, response } = JSON.parse(text) as Line;
    const { prompt_tokens: input, completion_tokens: written } = response.body.usage;
    return [`${name}/${asNumber(customId, name)}`, { input, output: written }];
  });
}

/** The number of the line that has this `custom_id` (see write-input.ts). */
const asNumber = (customId: string, name: string): string => /\d+/.exec(customId.slice(name.length))?.[0] ?? '';

/** By the calls that the provider has received. One whose answer nobody saw may have used nothing, or all it could. */
async function whatWasSpent(
  rig: Rig,
  name: string,
  weigh: (used: Used) => Big,
  known: ReadonlyMap<string, Used>,
): Promise<{ least: Big; most: Big }> {
  let [least, most] = [new Big(0), new Big(0)];
  for (const [user, count] of Object.entries(await rig.calls())) {
    if (!user.startsWith(`${name}/`)) continue;
    const used = known.get(user);
    least = least.plus(used ? weigh(used).times(count) : 0);
    most = most.plus(weigh(used ?? largest).times(count));
  }
  return { least, most };
}

/** A line of this round fails because of the budget, and for nothing else; where lines wait, none does. */
function checkCodes({ whenUsedUp }: BudgetPlan, { errors }: BatchEvidence): string[] {
  const lines = (errors?.toString('utf8') ?? '').split('\n').filter((line) => line !== '');
  const others = lines.filter((line) => whenUsedUp === 'wait' || !line.includes('"code":"usage_limit_exceeded"'));
  return others.slice(0, 3).map((line) => `a line failed that had no reason to: ${line.slice(0, 400)}`);
}
