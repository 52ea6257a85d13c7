type Manifest = {
  from: string | null;
  to: string | null;
  workspace_id: string | null;
  events: number;
  calls: number;
  trees: readonly { tree: number; size: number }[];
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
  ${content}
  key.txt       the verifier keys of the log
  manifest.json the counts and the range of this export

What a successful check proves

  - Every event is the one that was sealed at its place. No event is missing between the first and the last one here.
  - Every call is the one that was sealed. Lines of batches are in the results of their batches.
  - The server that holds the key signed the log with these events.

What it does not prove

  - That the events are true, or that an event was not changed before it was sealed.
  - That no event precedes the first one here or follows the last one, if a time range or a workspace was given.
  - What is shown of data whose salt is null. A part of it was erased or is secret. Its digest is proved.
`;
}
