import type { Neighbour } from './export-progress.ts';

export type Manifest = {
  from: string | null;
  to: string | null;
  workspace_id: string | null;
  events: number;
  erasures: number;
  calls: number;
  trees: readonly { tree: number; size: number }[];
  /** The sealed events next to the first and the last one; null if there are none, or no limit. */
  before: Neighbour | null;
  after: Neighbour | null;
};

/** The page for the auditor. */
export function describeExport({ from, to, workspace_id: workspaceId, events, calls, trees }: Manifest): string {
  const content =
    workspaceId === null
      ? 'trees/        the hash trees of the log, in the format tlog-tiles, with signed checkpoints'
      : 'trees/        the signed checkpoints of the log';
  return `An export of a Sluice event log

Events:      ${events}
Calls:       ${calls}
Workspace:   ${workspaceId ?? 'all'}
Time range:  ${from ?? 'the beginning'} to ${to ?? 'the end'}
Checkpoints: ${trees.map(({ tree, size }) => `tree ${tree} with ${size} entries`).join(', ')}

Check it with Node 20.12 or later:

  node audit-verify.mjs . --key 'KEY'

KEY is the verifier key of the log. Get it in another way than this folder, and compare it with key.txt. If you have an
earlier checkpoint of the log, add --checkpoint FILE. That works with an export of all workspaces.

The program is short. Read it, or get it from a source that you trust.

Files

  events.ndjson one event per line: its place in a tree, the envelope that its hash covers, data and metadata with salts
  calls.ndjson  one call per line, with the event that seals it. A call that retention deleted is only its hash
  erasures.ndjson the events that record what was erased from events here, each with a proof
  ${content}
  key.txt       the verifier keys of the log
  manifest.json the counts and the range of this export, and the events next to it without their data

What a successful check proves

  - Every event is the one that was sealed at its place, and no event of the range that is printed is missing.
  - What is shown of an erased event is what its erasure left.
  - Every call is the one that was sealed. Lines of batches are in the results of their batches.
  - The server that holds the key signed the log with these events.

What it does not prove

  - That the events are true, or that an event was not changed before it was sealed.
  - That the range is the one that you asked for. Compare it.
  - That no event follows the checkpoints. An earlier checkpoint of yours shows that none was removed before it.
  - What is shown of data that is marked as withheld, because a part of it is secret. Its digest is proved.
${
  workspaceId === null ? '' : '  - That the workspace has no event after the last one here, if the program says so.\n'
}`;
}
