import fc from 'fast-check';
import { expect, test } from 'vitest';
import { canonicalJson } from '#libs/event-log/canonical-json.ts';
import { createRunningRoot, hashLeaf, inclusionProof, isIncluded, rootOfHashes } from '#libs/seal/merkle-tree.ts';
import { logEntry } from '#test/log-entry.ts';
import { newLogUuid, toLogId } from '../row/log-id.ts';
import { compareLeaves, splitHashes, type LeafDifference } from './compare-leaves.ts';
import { toLeaf, toSealedRecord, type SealedRow } from './sealed-calls.ts';

const rowAt = (sequence: number): SealedRow => {
  const id = newLogUuid(1_700_000_000_000 + sequence, sequence);
  return {
    ...logEntry({ model: `model-${sequence}` }),
    id,
    sequence,
    process_id: '0193a000-0000-7000-8000-000000000001',
  };
};
const rows = Array.from({ length: 40 }, (_row, index) => rowAt(index + 1));
const hashRows = (sealed: readonly SealedRow[]): Buffer =>
  Buffer.concat(sealed.map((row) => Buffer.from(hashLeaf(toLeaf(row)))));

async function compare(sealed: readonly SealedRow[], found: readonly SealedRow[], page = 7): Promise<LeafDifference[]> {
  async function* pages(): AsyncGenerator<readonly SealedRow[]> {
    for (let at = 0; at < found.length; at += page) yield found.slice(at, at + page);
  }
  const differences: LeafDifference[] = [];
  for await (const difference of compareLeaves(hashRows(sealed), pages())) differences.push(difference);
  return differences;
}

test('records that are as they were sealed have no differences, whatever the pages', async () => {
  for (const page of [1, 7, 100]) expect(await compare(rows, rows, page)).toEqual([]);
});

test('a changed, a removed and an added record are named', async () => {
  const [first, second, third, fourth] = rows as [SealedRow, SealedRow, SealedRow, SealedRow];
  const changed = { ...second, cost: '0' };
  expect(await compare([first, second, third], [first, changed, third])).toEqual([
    { kind: 'changed', id: toLogId(second.id) },
  ]);
  expect(await compare([first, second, third, fourth], [first, fourth])).toEqual([
    { kind: 'missing', count: 2, after: toLogId(first.id) },
  ]);
  expect(await compare([first, second], [second])).toEqual([{ kind: 'missing', count: 1, after: null }]);
  expect(await compare([first, third], [first, second, third])).toEqual([{ kind: 'added', id: toLogId(second.id) }]);
});

test('every changed and every removed record is found', async () => {
  const edits = fc.array(fc.constantFrom('kept', 'changed', 'removed'), { minLength: 40, maxLength: 40 });
  await fc.assert(
    fc.asyncProperty(edits, async (kinds) => {
      const found = rows.flatMap((row, index) =>
        kinds[index] === 'removed' ? [] : [kinds[index] === 'changed' ? { ...row, status: 500 } : row],
      );
      const differences = await compare(rows, found);
      const changed = differences.flatMap((each) => (each.kind === 'changed' ? [each.id] : []));
      expect(changed).toEqual(rows.filter((_row, index) => kinds[index] === 'changed').map(({ id }) => toLogId(id)));
      const missing = differences.reduce((sum, each) => sum + (each.kind === 'missing' ? each.count : 0), 0);
      expect(missing).toBe(kinds.filter((kind) => kind === 'removed').length);
    }),
    { numRuns: 30 },
  );
});

test('the root that is computed leaf by leaf is that of the whole, and proves each leaf', async () => {
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 40 }), async (count) => {
      const hashes = hashRows(rows.slice(0, count));
      const running = createRunningRoot();
      for (const hash of splitHashes(hashes)) running.add(hash);
      const root = Buffer.from(running.root());
      expect(root).toEqual(rootOfHashes(hashes));
      const part = (start: number, end: number): Promise<Buffer> =>
        Promise.resolve(rootOfHashes(hashes.subarray(32 * start, 32 * end)));
      for (const [index, hash] of [...splitHashes(hashes)].entries()) {
        const path = await inclusionProof(part, index, count);
        expect(isIncluded(hash, index, path, { size: count, root })).toBe(true);
      }
    }),
    { numRuns: 20 },
  );
});

test('a leaf has no nulls and no e-mail address of the user, so an erasure leaves it as it was', () => {
  const [row] = rows as [SealedRow];
  const call = { ...row, user_id: 'user_1', metadata: { _user: 'ann@example.org', team: 'search' } };
  const erased = { ...call, metadata: { _user: 'user_1', team: 'search' } };
  expect(toLeaf(erased)).toEqual(toLeaf(call));
  expect(toSealedRecord(call)).toMatchObject({ user_id: 'user_1', metadata: { team: 'search' }, id: toLogId(row.id) });
  expect(toLeaf(call).toString()).not.toContain('null');
});

test('a leaf is the canonical JSON of its record', () => {
  const metadata = { team: 'sëarch', _user: 'ada@example.com', a: 'quote "' };
  const guardrails = [{ kind: 'input_guardrails', id: 'g', slug: null, version: 1, verdict: 'passed' }];
  for (const change of [{}, { metadata, guardrails, usage_details: { z: 1, a: 2 }, cost: '0.1' }, { metadata: null }]) {
    const row = { ...rowAt(1), ...change } as SealedRow;
    expect(toLeaf(row).toString()).toBe(canonicalJson(toSealedRecord(row)));
  }
});
