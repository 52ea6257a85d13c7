import type { Attack } from './attack.ts';
import { answerAttacks } from './attacks/answers.ts';
import { batchAttacks } from './attacks/batches.ts';
import { bodyAttacks } from './attacks/bodies.ts';
import { callerAttacks } from './attacks/callers.ts';
import { connectionAttacks } from './attacks/connections.ts';
import { recordAttacks } from './attacks/records.ts';
import { readAttacks } from './attacks/reads.ts';

/** Every attack, in the order of the table. */
export const allAttacks: readonly Attack[] = [
  ...bodyAttacks,
  ...answerAttacks,
  ...callerAttacks,
  ...connectionAttacks,
  ...batchAttacks,
  ...recordAttacks,
  ...readAttacks,
];
