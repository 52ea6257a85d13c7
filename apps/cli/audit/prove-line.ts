import { sql } from 'kysely';
import type { BlobStore } from '#libs/blobs/blob-store.ts';
import {
  findBatch,
  findLineNumber,
  isSettlementOf,
  proveRequest,
  proveResult,
  type LinePath,
  type ProofDeps,
} from '#libs/batches/look/prove-line.ts';
import { createEventLog } from '#libs/event-log/event-log.ts';
import { createFiles } from '#libs/files/files.ts';
import { CliError } from '../server/cli-error.ts';
import { keptCheckpoints, type AuditDeps } from './checkpoints.ts';
import { writeProof } from './prove-event.ts';
import { proveErasures, proveEvents, type ProvenEvent } from './proven-event.ts';

type Wanted = { batchId: string; line: number | null; customId: string | null; out: string };

/** What the proof has of the result and of the request. `unsealed`: no sealed event contains it. */
type Proved = { line: number; result: Kept; request: Kept };
type Kept = 'whole' | 'digest' | 'none' | 'unsealed';

/**
 * Writes a proof of a line of a batch, as one file in the format c2sp.org/tlog-proof@v1: its result under the root of the
 * event that settled it, and its request under the root of `batch.validated`. Bytes that are not kept are left out, and paths
 * if no digest is kept. Throws CliError if the batch has no such line, or if neither event is sealed.
 */
export async function proveLine(given: AuditDeps & { blobs: BlobStore }, wanted: Wanted): Promise<Proved> {
  const { batchId, out } = wanted;
  const files = createFiles({ ...given, eventLog: createEventLog(given.db) });
  const deps: AuditDeps & ProofDeps = {
    ...given,
    async findBlob(workspaceId, fileId) {
      const file = await files.find(workspaceId, fileId);
      return file?.deleted_at === null ? file.blob : null;
    },
  };
  const batch = await findBatch(deps.db, batchId);
  const checkpoints = await keptCheckpoints(deps);
  const line = await findLine();
  const isValidation = sql`stream_id = ${batchId} and type = 'batch.validated'`;
  const [validated = null] = await proveEvents(deps, checkpoints, isValidation);
  const [settled = null] = await proveEvents(deps, checkpoints, await isSettlementOf(deps.db, batch, line));
  const main = settled ?? validated;
  if (main === null)
    throw new CliError(`No event about line ${line} is sealed.`, {
      hint: 'An event is sealed within a few seconds. A batch that failed its validation has no lines.',
    });

  const request = validated && (await proveRequest(deps, batch, line, validated.data as never));
  const version = settled?.event['stream_version'] as number;
  const result = settled && (await proveResult(deps, batch, line, { version, data: settled.data as never }));
  const toPart = async (proven: ProvenEvent | null, path: LinePath | null) => {
    if (proven === null) return null;
    const erasures = await proveErasures(deps, checkpoints, proven);
    const part = { ...proven, ...(path ?? noPath), ...(erasures.length === 0 ? {} : { erasures }) };
    if (proven !== main) return part;
    const { proof: _proof, checkpoint: _checkpoint, tree: _tree, index: _index, ...rest } = part;
    return rest;
  };
  const parts = { result: await toPart(settled, result), input: await toPart(validated, request) };
  await writeProof(out, main, { batch_id: batchId, line, ...parts });
  return { line, result: describe(settled, result), request: describe(validated, request) };

  async function findLine(): Promise<number> {
    const found = wanted.line ?? (await findLineNumber(deps, batch, wanted.customId ?? ''));
    if (found !== null && found >= 1 && found <= batch.total) return found;
    if (wanted.line === null)
      throw new CliError(`No line has the custom_id ${wanted.customId}.`, {
        hint: 'It is searched for in the input file. If that was deleted, use --line.',
      });
    throw new CliError(`The batch has no line ${wanted.line}.`, {
      hint: `Its lines have numbers up to ${batch.total}.`,
    });
  }
}

const noPath = { line_hash: null, line_path: null, line_base64: null };

function describe(event: ProvenEvent | null, path: LinePath | null): Kept {
  if (event === null) return 'unsealed';
  if (path === null) return 'none';
  return path.line_base64 === null ? 'digest' : 'whole';
}

/** What a proof contains, in sentences. */
export function describeLineProof({ line, ...kept }: Proved, out: string): string[] {
  const texts: Record<Kept, string> = {
    whole: 'with its bytes',
    digest: 'with its digest; its bytes are not kept',
    none: 'not proved, because neither its bytes nor its digest are kept',
    unsealed: 'not proved, because no sealed event contains it',
  };
  return [
    `line ${line}; the proof is in ${out}`,
    ...(['request', 'result'] as const).map((part) => `${part}: ${texts[kept[part]]}`),
  ];
}
