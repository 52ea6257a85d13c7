import { GatewayError, type ErrorKind } from '#libs/kernel/errors.ts';
import type { Snapshot } from './snapshot.ts';

/** A request names a record that is not in this process's snapshot. Another process may have created it a moment ago. */
export class NotInSnapshot extends GatewayError {
  /** Absent if the request does not name the record by its ID. */
  readonly id: string | undefined;

  constructor(kind: ErrorKind, code: string, message: string, details: { param?: string | null; id?: string } = {}) {
    super(kind, code, message, { param: details.param ?? null });
    this.id = details.id;
  }
}

export type Refreshable = Pick<Snapshot<unknown>, 'refresh' | 'absent'>;

/**
 * Runs `find`. If it throws NotInSnapshot, refreshes the snapshot and runs it once more. An ID that is missing from the
 * database as well is not looked up again until something changes: the million lines of a batch would otherwise cause a
 * million queries. Returns what `find` returns, without a promise unless there is something to wait for. Rejects with the
 * errors of `find`, and with unavailable when the database does not answer.
 */
export function withRefresh<Result>(
  snapshot: Refreshable,
  find: () => Result | Promise<Result>,
): Result | Promise<Result> {
  try {
    const found = find();
    return found instanceof Promise ? found.catch((error: unknown) => afterRefresh(snapshot, find, error)) : found;
  } catch (error) {
    return afterRefresh(snapshot, find, error);
  }
}

async function afterRefresh<Result>(
  snapshot: Refreshable,
  find: () => Result | Promise<Result>,
  error: unknown,
): Promise<Result> {
  if (!(error instanceof NotInSnapshot) || (error.id !== undefined && snapshot.absent.has(error.id))) throw error;
  await snapshot.refresh().catch((cause: unknown) => {
    throw new GatewayError(
      'unavailable',
      'access_unavailable',
      'The virtual key, config, guardrail or prompt cannot be looked up because the database is temporarily unavailable. Try again shortly.',
      { retryAfterMs: 1_000, cause },
    );
  });
  try {
    return await find();
  } catch (error) {
    if (error instanceof NotInSnapshot && error.id !== undefined) snapshot.absent.add(error.id);
    throw error;
  }
}
