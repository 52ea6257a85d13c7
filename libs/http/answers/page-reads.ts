import type { Request, Response } from 'express';
import type { BytePace } from '#libs/kernel/sharing/byte-pace.ts';
import type { MemoryBudget, MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { sleep } from '#libs/kernel/sleep.ts';
import type { Turns } from '#libs/kernel/sharing/turns.ts';
import { abortWhenClientLeaves } from '../client-signal.ts';
import { clientDisconnected } from '../bodies/json-body.ts';
import { getCaller, getContext } from '../request-context.ts';

/** A page, and how many bytes its records have in the database. */
export type SizedPage = { bytes: number };

/** Counts bytes that were read, and waits until the workspace can read more. */
export type SpendBytes = (bytes: number) => Promise<void>;

/** Reads pages of records that can be large, such as events, within the memory budget, in turns and at a limited pace. */
export type PageReads = {
  /** The maximum total size of a page's records. */
  readonly bytesMax: number;
  /**
   * Reads one page and charges it to the workspace until `lease.release()`. Throws rate_limited, `unavailable` if there is no
   * memory for it, and the reason of `signal`. A `read` that takes several steps calls `spend` after each; bytes of the page
   * that it has not counted are counted at the end.
   */
  read<Page extends SizedPage>(
    workspaceId: string,
    signal: AbortSignal,
    read: (spend: SpendBytes) => Promise<Page>,
  ): Promise<{ page: Page; lease: MemoryLease }>;
  /** Reads one page and charges it to the caller's workspace until the answer has been sent. */
  forAnswer<Page extends SizedPage>(
    request: Request,
    response: Response,
    read: (signal: AbortSignal, spend: SpendBytes) => Promise<Page>,
  ): Promise<Page>;
};

/**
 * How many copies of a record's bytes are in memory while its page is read and written: the bytes from the database,
 * the text, the answer, and the socket. Texts that are not Latin-1 have two bytes per character.
 */
const copies = 6;

/**
 * `reservedBytes`: the charge for a page before its size is known. Default: `bytesMax`, so that pages never exceed the
 * memory budget. If nearly all pages are small, a smaller value avoids waits for memory that they do not need; in that
 * case, the pages that are being read can exceed the budget. `pace`: how fast each workspace reads. Default: no limit.
 */
export function createPageReads(deps: {
  memory: MemoryBudget;
  turns: Turns;
  bytesMax: number;
  reservedBytes?: number;
  pace?: BytePace;
}): PageReads {
  const { memory, turns, pace } = deps;
  const bytesMax = Math.min(deps.bytesMax, Math.floor(memory.leaseBytesMax / copies));
  const reservedBytes = Math.min(deps.reservedBytes ?? bytesMax, bytesMax);
  const read: PageReads['read'] = (workspaceId, signal, readPage) =>
    turns.run(
      workspaceId,
      async () => {
        let spentBytes = 0;
        const spend = async (bytes: number): Promise<void> => {
          spentBytes += bytes;
          const waitMs = pace?.spend(workspaceId, bytes) ?? 0;
          if (waitMs > 0) await sleep(waitMs, signal);
        };
        const lease = memory.open(workspaceId);
        try {
          await lease.chargeWhenFree(reservedBytes * copies, signal);
          const page = await readPage(spend);
          lease.become(page.bytes * copies);
          await spend(Math.max(0, page.bytes - spentBytes));
          return { page, lease };
        } catch (error) {
          lease.release();
          throw error;
        }
      },
      signal,
    );
  return {
    bytesMax,
    read,
    async forAnswer(request, response, readPage) {
      const { signal } = abortWhenClientLeaves(response);
      const { workspaceId } = getCaller(request);
      const reading = read(workspaceId, signal, (spend) => readPage(signal, spend));
      const { page, lease } = await reading.catch((error: unknown) => {
        throw signal.aborted ? clientDisconnected() : error;
      });
      // It is released when the connection closes or the answer ends, and that may have happened meanwhile.
      if (response.destroyed) lease.release();
      else getContext(request).memory = lease;
      return page;
    },
  };
}
