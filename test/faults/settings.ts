import type { PlanOptions } from './plan-round.ts';

/** Calls under way in one worker. */
export const callsMax = 24;

/** Small chunks and few calls at once, so that even a short batch has many moments at which it can crash. */
export const rigEnvironment: Record<string, string> = {
  SLUICE_CHUNK_LINES: '40',
  SLUICE_CHUNKS_MAX: '4',
  SLUICE_CALLS_MAX: String(callsMax),
};

export const planOptions: PlanOptions = {
  linesMax: 3_000,
  callsInFlight: callsMax,
  hurryPercent: 60,
  longOutagePercent: 6,
  longCallsPercent: 10,
};
