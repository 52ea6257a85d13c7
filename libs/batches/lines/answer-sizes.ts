import { LRUCache } from 'lru-cache';
import type { BatchRow } from '../batch/batch-model.ts';

/** Expected sizes of the answers to a batch's lines, learned from earlier answers. */
export type AnswerSizes = {
  /** Expected bytes of the next answer. */
  expected(batch: AnsweredBatch): number;
  learn(batch: AnsweredBatch, bytes: number): void;
};

type AnsweredBatch = Pick<BatchRow, 'workspace_id' | 'endpoint' | 'model' | 'id'>;

/** For the first answer. Most are smaller; a larger one waits in its socket until it gets the memory that it needs. */
const firstBytes = 16_384;
const knownMax = 1_000;
/** After this many small answers, two thirds of the difference to an earlier large one are forgotten. */
const decayAnswers = 32;

/**
 * Expects about the largest of the recent answers. Sizes are recorded per workspace, endpoint and model, so that
 * similar batches share them. A batch whose lines name several models has a separate entry.
 */
export function createAnswerSizes(): AnswerSizes {
  const sizes = new LRUCache<string, number>({ max: knownMax });
  const keyOf = ({ workspace_id, endpoint, model, id }: AnsweredBatch): string =>
    `${workspace_id} ${endpoint} ${model ?? id}`;
  return {
    expected: (batch) => sizes.get(keyOf(batch)) ?? firstBytes,
    learn(batch, bytes) {
      const key = keyOf(batch);
      const known = sizes.get(key);

      const expected = known === undefined || bytes >= known ? bytes : known - (known - bytes) / decayAnswers;
      sizes.set(key, Math.ceil(expected));
    },
  };
}
