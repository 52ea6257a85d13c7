import { listAttempts } from '#libs/calls/planned-call.ts';
import { columnList, type CallFacts } from '../columns.ts';
import type { RequestLogEntry } from '../row/log-entry.ts';
import type { CallCosts } from './call-costs.ts';
import { listVerdicts, selectSteps } from './call-steps.ts';
import type { CallEnd, LoggedCall } from './logged-call.ts';
import { countRequestUnits } from './request-units.ts';

/** The row of a call in the request log: the only place where one is made, for live, pass-through and batch calls alike. */
export function toLogEntry(costs: CallCosts, logged: LoggedCall): RequestLogEntry {
  const { call, end } = logged;
  const units = end.units ?? (isMade(end) ? countRequestUnits(logged) : null);
  const cost = costs.of({ call, method: logged.method, end: units === null ? end : { ...end, units } });
  const steps = selectSteps(logged.startedAtMs, listAttempts(call, end), call.guardrailRuns, logged.kind);
  return readColumns({ ended: logged, units, cost, steps, verdicts: listVerdicts(call.guardrailRuns) });
}

const derived = columnList.flatMap(([name, { from }]) => (from === undefined ? [] : [[name, from] as const]));

/**
 * Reads every column of a call. It is compiled from the list, because an object with so many members that is filled in
 * a loop takes three times as long to create and to read.
 */
// oxlint-disable-next-line typescript/no-implied-eval -- the names come from the list of columns
const readColumns = new Function(
  'from',
  `return (facts) => ({ ${derived.map(([name]) => `${name}: from.${name}(facts)`).join(', ')} });`,
)(Object.fromEntries(derived)) as (facts: CallFacts) => RequestLogEntry;

/** Whether a provider produced the requested result. Providers charge for nothing else. */
const isMade = ({ attempts }: CallEnd): boolean => (attempts.at(-1)?.status ?? 500) < 400;
