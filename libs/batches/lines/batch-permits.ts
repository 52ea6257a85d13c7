import { createHash } from 'node:crypto';
import { memberValue } from '#libs/kernel/json/json-members.ts';
import type { BatchRow } from '../batch-model.ts';
import { readModel, replacedModel } from './call-line.ts';
import type { Permits, PermitPool } from './permit-pool.ts';

/**
 * The permits for each line of a batch, in the groups of its workspace, its destination and its batch. Many batches
 * with the same credential and model that hang are one destination. A destination is identified before the call by the
 * workspace, the batch's target (or its config) and the model. (The ID of a secret is left out, because a secret that
 * came with the create call is stored separately for each batch.)
 */
export function createBatchPermits(pool: Pick<PermitPool, 'of'>, batch: BatchRow): (line: Buffer) => Permits {
  const target = JSON.stringify(batch.target, (name, value: unknown) => (name === 'secret_id' ? undefined : value));
  const destination = createHash('sha256').update(`${batch.workspace_id}\n${target}`).digest('base64');
  const permitsOf = (model: string | null): Permits =>
    pool.of(batch.workspace_id, `${destination} ${model ?? ''}`, batch.id);
  const model = replacedModel(batch) ?? batch.model;
  if (model !== null) {
    const permits = permitsOf(model);
    return () => permits;
  }
  const byModel = new Map<string | null, Permits>();
  return (line) => {
    const body = memberValue(line, 'body');
    const own = body === undefined ? null : readModel(body);
    const permits = byModel.get(own) ?? permitsOf(own);
    byModel.set(own, permits);
    return permits;
  };
}
