import type { BatchRow } from './batch-model.ts';

/** What the answers of a batch's lines are expected to take, learned from those that came. */
export type AnswerSizes = {
  /** Bytes of the next answer. */
  expected(batch: AnsweredBatch): number;
  learn(batch: AnsweredBatch, bytes: number): void;
};

type AnsweredBatch = Pick<BatchRow, 'workspace_id' | 'endpoint' | 'model' | 'id'>;

/** Of the first answer: more than most have, and what is larger waits in its socket for the memory that it needs. */
const firstBytes = 16_384;
const knownMax = 1_000;
/** So many answers after a large one, less is expected again by two thirds of the difference. */
const forgetting = 32;

/**
 * Expects as much as the largest of the last answers had. By workspace, endpoint and model, so that the batches of one kind
 * know from each other; batches of lines of several models know only from themselves.
 */
export function createAnswerSizes(): AnswerSizes {
  const sizes = new Map<string, number>();
  const keyOf = ({ workspace_id, endpoint, model, id }: AnsweredBatch): string =>
    `${workspace_id} ${endpoint} ${model ?? id}`;
  return {
    expected: (batch) => sizes.get(keyOf(batch)) ?? firstBytes,
    learn(batch, bytes) {
      const key = keyOf(batch);
      const known = sizes.get(key);
      if (known === undefined && sizes.size >= knownMax) sizes.delete(sizes.keys().next().value as string);
      const expected = known === undefined || bytes >= known ? bytes : known - (known - bytes) / forgetting;
      sizes.set(key, Math.ceil(expected));
    },
  };
}
