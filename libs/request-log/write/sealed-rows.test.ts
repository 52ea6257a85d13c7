import { expect, test } from 'vitest';
import { logEntry } from '#test/log-entry.ts';
import type { LogRow } from '../row/log-entry.ts';
import { newLogUuid } from '../row/log-id.ts';
import { sealRows, unsealRows } from './sealed-rows.ts';

const rows = [1, 2].map((sequence) => ({
  ...logEntry(),
  recorded_on: '2026-11-21',
  id: newLogUuid(Date.parse('2026-11-21'), sequence),
  sequence,
}));

test('rows on disk from a release with fewer columns have null in the missing ones', () => {
  const { copyData } = sealRows(rows, 'a process', 0);
  // A release with the process and the columns up to the sequence.
  const lines = copyData?.toString('utf8', 5).trimEnd().split('\n') ?? [];
  const older = lines.map((line) => `${line.split('\t').slice(0, 34).join('\t')}\n`).join('');
  const unsealed: Partial<LogRow>[] = unsealRows(Buffer.concat([Buffer.alloc(5), Buffer.from(older)])).rows();
  const { recorded_on, id, batch_line, last_used_option, sequence, ...newer } = unsealed[1] ?? {};
  expect({ recorded_on, id, batch_line, last_used_option, sequence }).toEqual({
    recorded_on: '2026-11-21',
    id: rows[1]?.id,
    batch_line: null,
    last_used_option: null,
    sequence: 2,
  });
  expect(newer).toMatchObject({
    duration_ms: 812.25,
    cost: null,
    is_estimate: null,
    retries: null,
    usage_details: null,
  });
});
