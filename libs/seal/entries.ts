import { hash } from 'node:crypto';
import { canonicalJson } from '#libs/event-log/canonical-json.ts';

/** The last entry of a workspace: its number in the workspace, from 1, and its SHA-256. */
export type Head = { number: number; sha256: Buffer };

/**
 * The entries of events, in log order. Each names the previous entry of its workspace, so that the entries of one workspace
 * prove without those of others that none is missing. `heads` are moved to the last entries.
 */
export function makeEntries(
  events: readonly { workspaceId: string; sha256: Buffer }[],
  heads: Map<string, Head>,
): Buffer[] {
  return events.map(({ workspaceId, sha256 }) => {
    const previous = heads.get(workspaceId);
    const number = (previous?.number ?? 0) + 1;
    const text = canonicalJson({
      event_sha256: sha256.toString('hex'),
      workspace_id: workspaceId,
      number,
      previous: previous?.sha256.toString('hex') ?? null,
    });
    const entry = Buffer.from(text);
    heads.set(workspaceId, { number, sha256: hash('sha256', entry, 'buffer') });
    return entry;
  });
}

/** The first entry of a tree that follows another one: the last checkpoint of that, and how many of its entries the log still has. */
export type Succession = { previous_checkpoint: string; kept: number };

export const successionEntry = (succession: Succession): Buffer => Buffer.from(canonicalJson(succession));

/** Returns what the first entry of a tree says about its predecessor; null if that is the entry of an event. */
export function parseSuccession(entry: Buffer): Succession | null {
  const { previous_checkpoint: note, kept } = JSON.parse(entry.toString()) as Partial<Record<string, unknown>>;
  return typeof note === 'string' && typeof kept === 'number' ? { previous_checkpoint: note, kept } : null;
}
