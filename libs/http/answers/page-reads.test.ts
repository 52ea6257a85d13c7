import { expect, test } from 'vitest';
import { createMemoryBudget } from '#libs/kernel/sharing/memory-budget.ts';
import { createTurns } from '#libs/kernel/sharing/turns.ts';
import { createPageReads } from './page-reads.ts';

test('each byte of a page is counted once for its workspace, whose next page waits for its pace', async () => {
  const spent: [string | null, number][] = [];
  const pace = {
    spend(workspaceId: string | null, bytes: number) {
      spent.push([workspaceId, bytes]);
      return workspaceId === 'busy' ? 20 : 0;
    },
  };
  const memory = createMemoryBudget(1_000_000);
  const turns = createTurns({ runningMax: 2, waitingMax: 10 }, 'pages');
  const pages = createPageReads({ memory, turns, bytesMax: 1_000, pace });
  const { signal } = new AbortController();
  const order: string[] = [];
  const read = (workspaceId: string): Promise<void> =>
    pages
      .read(workspaceId, signal, async (spend) => {
        await spend(500);
        return { bytes: 510 };
      })
      .then(({ lease }) => {
        order.push(workspaceId);
        lease.release();
      });
  await Promise.all([read('busy'), read('busy'), read('other')]);
  expect(order).toEqual(['other', 'busy', 'busy']);
  expect(spent.filter(([id]) => id === 'busy')).toEqual([
    ['busy', 500],
    ['busy', 10],
    ['busy', 500],
    ['busy', 10],
  ]);
});
