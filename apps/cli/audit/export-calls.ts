import type { Kysely } from 'kysely';
import type { Database } from '#libs/database/schema.ts';
import { readHashes } from '#libs/request-log/seal/check-calls.ts';
import { splitHashes } from '#libs/request-log/seal/compare-leaves.ts';
import { readSealedRows, toLeaf, type CallsSealed } from '#libs/request-log/seal/sealed-calls.ts';
import { hashLeaf } from '#libs/seal/merkle-tree.ts';
import { CliError } from '../server/cli-error.ts';
import type { ShownEvent } from './sealed-events.ts';

type CallLine = { text: string; isRecord: boolean };

/**
 * Yields pages of lines of an export for the calls that an event seals: a record, or the hash of a leaf whose record was
 * deleted. Yields none if retention has deleted the hashes too. Throws CliError for a changed record.
 */
export async function* readCallLines(db: Kysely<Database>, { event, data }: ShownEvent): AsyncGenerator<CallLine[]> {
  const seal = event['event_id'] as string;
  const hashes = splitHashes(await readHashes(db, seal));
  const toDeleted = (hash: Buffer): CallLine => {
    return { text: JSON.stringify({ seal, leaf_sha256: hash.toString('hex') }), isRecord: false };
  };
  for await (const rows of readSealedRows(db, event['workspace_id'] as string, data as CallsSealed)) {
    const lines: CallLine[] = [];
    for (const row of rows) {
      const leaf = toLeaf(row);
      const hash = hashLeaf(leaf);
      for (let next = hashes.next(); next.value?.equals(hash) !== true; next = hashes.next()) {
        if (next.done === true) throw differs(seal);
        lines.push(toDeleted(next.value));
      }
      lines.push({ text: `{"seal":"${seal}","record":${leaf.toString()}}`, isRecord: true });
    }
    yield lines;
  }
  yield Array.from(hashes, toDeleted);
}

const differs = (seal: string): CliError =>
  new CliError(`The request log differs from the seal ${seal}.`, { hint: 'Run: sluice check calls' });
