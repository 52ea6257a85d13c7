import { readFile, rename, writeFile } from 'node:fs/promises';
import { sql } from 'kysely';
import { logStart, type Checkpoint } from '#libs/event-log/read-events.ts';
import { findRange } from '#libs/event-log/read-log.ts';
import { findPlace } from '#libs/seal/find-place.ts';
import type { OpenCheckpoint } from '#libs/seal/tree-names.ts';
import { CliError } from '../server/cli-error.ts';
import { allCheckpoints, untilSealed, type AuditDeps } from './checkpoints.ts';
import { proveEvents } from './proven-event.ts';
import type { ShownEvent, WalkPlace } from './sealed-events.ts';

export type ExportSelection = {
  from: Date | null;
  to: Date | null;
  /** Null: the events and entries of all workspaces. */
  workspaceId: string | null;
};

/** The envelope of the event next to the exported ones, which shows that none is missing there. */
export type Neighbour = Pick<ShownEvent, 'tree' | 'index' | 'number' | 'previous' | 'event'> & { proof: string[] };

/** What an export was asked for, in the form of its files. */
type Asked = { from: string | null; to: string | null; workspace_id: string | null };

/** How far an export is. Everything that a later run could see differently is decided by the first one. */
export type Progress = Asked & {
  /** The signed checkpoint of each tree. */
  checkpoints: string[];
  /** The place in the log before the first event, and that of the last one; null for the end of the trees. */
  start: Checkpoint;
  end: Checkpoint | null;
  before: Neighbour | null;
  after: Neighbour | null;
  /** The numbers of events and bytes that are written, and where the next event is. */
  events: number;
  bytes: number;
  next: WalkPlace;
};

/**
 * Chooses the checkpoints and the range of an export. `sealMsMax`: how long it waits for the seal of the newest event. Throws
 * CliError if the range begins after the sealed events.
 */
export async function beginExport(deps: AuditDeps, selection: ExportSelection, sealMsMax: number): Promise<Progress> {
  // An event that was just erased is exported with the record of its erasure.
  await untilSealed(deps, sealMsMax);
  const checkpoints = await allCheckpoints(deps);
  const range = await findRange(deps.db, selection);
  const { start, end } = range;
  const place = start === logStart ? { tree: 1, index: -1 } : await findPlace(deps.db, start);
  const before = await proveNeighbour(deps, checkpoints, range.before);
  if (place === null || (range.before !== null && before === null)) {
    throw new CliError('No event of this time range is sealed.', {
      hint: 'A new event is sealed within a few seconds.',
    });
  }
  return {
    from: selection.from?.toISOString() ?? null,
    to: selection.to?.toISOString() ?? null,
    workspace_id: selection.workspaceId,
    checkpoints: checkpoints.map(({ note }) => note),
    start,
    end,
    before,
    after: await proveNeighbour(deps, checkpoints, range.after),
    events: 0,
    bytes: 0,
    next: { tree: place.tree, index: place.index + 1, after: start },
  };
}

async function proveNeighbour(
  deps: AuditDeps,
  checkpoints: readonly OpenCheckpoint[],
  position: number | null,
): Promise<Neighbour | null> {
  if (position === null) return null;
  const [proven] = await proveEvents(deps, checkpoints, sql`position = ${position}`);
  if (!proven) return null;
  const { tree, index, number, previous, event, proof } = proven;
  return { tree, index, number, previous, event, proof };
}

/** Returns the content of a file; null if there is none. */
export async function readJson<Content>(file: string): Promise<Content | null> {
  const text = await readFile(file, 'utf8').catch(() => null);
  return text === null ? null : (JSON.parse(text) as Content);
}

/** Replaces a file as a whole. */
export async function writeJson(file: string, content: object): Promise<void> {
  await writeFile(`${file}.new`, `${JSON.stringify(content, null, 2)}\n`);
  await rename(`${file}.new`, file);
}
