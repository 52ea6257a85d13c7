import { hash } from 'node:crypto';
import { canonicalJson } from '#libs/event-log/canonical-json.ts';
import type { Checkpoint } from '#libs/event-log/read-events.ts';
import { readLog, type EventContent, type LogSelection } from '#libs/event-log/read-log.ts';
import { publicData } from '#libs/records/public-event.ts';
import { parseSuccession } from '#libs/seal/entries.ts';
import type { Place } from '#libs/seal/find-place.ts';
import type { OpenCheckpoint } from '#libs/seal/tree-names.ts';
import { CliError } from '../server/cli-error.ts';
import type { AuditDeps } from './checkpoints.ts';
import { readEntries, readEntry } from './tree-files.ts';

/**
 * A sealed event. `event` is its envelope, whose SHA-256 is in the entry. A salt is null if a part was erased, or, with
 * `withheld`, if the data has secrets that are not shown.
 */
export type ShownEvent = {
  tree: number;
  index: number;
  number: number;
  previous: string | null;
  event: Record<string, string | number>;
  data: object;
  data_salt: string | null;
  metadata: object;
  metadata_salt: string | null;
  withheld?: true;
};

/** Where a walk through log and trees continues: the next entry, and the event before it. */
export type WalkPlace = Place & { after: Checkpoint };

/**
 * Yields the selected events with their places in the trees, in the order of the log, and where to continue after each.
 * Entries that the log lost when it went back have no event. Throws CliError if an event is not the sealed one.
 */
export async function* readSealedEvents(
  { db, folder }: Pick<AuditDeps, 'db' | 'folder'>,
  checkpoints: readonly OpenCheckpoint[],
  start: WalkPlace,
  selection: LogSelection,
): AsyncGenerator<{ shown: ShownEvent; next: WalkPlace }> {
  const events = readLog(db, start.after, selection);
  for (const [at, checkpoint] of checkpoints.entries()) {
    const { tree } = checkpoint;
    if (tree < start.tree) continue;
    const next = checkpoints[at + 1];
    const kept = (next && (await readKept(folder, next))) ?? checkpoint.size;
    for await (const bundle of readEntries(folder, checkpoint, tree === start.tree ? start.index : 0)) {
      for (const { index, entry } of bundle) {
        if (index >= kept || isSuccession(entry, { tree, index })) continue;
        const { value: content } = await events.next();
        if (content === undefined && selection.end !== null) return;
        if (content === undefined) throw differs({ tree, index }, 'the log has no event for it');
        if (content === null) continue;
        const { epoch, transactionId, position } = content;
        const after = { epoch, transactionId, position };
        yield { shown: showSealed(content, entry, { tree, index }), next: { tree, index: index + 1, after } };
      }
    }
  }
}

/** The event with the place and the chain of its entry. Throws CliError if it is not the sealed one. */
export function showSealed(content: EventContent, entry: Buffer, { tree, index }: Place): ShownEvent {
  const { event_sha256: sha256, number, previous } = JSON.parse(entry.toString()) as SealedEntry;
  if (hash('sha256', content.envelope) !== sha256)
    throw differs({ tree, index }, `the log has another event there, ${content.envelope}`);
  return { tree, index, number, previous, ...show(content) };
}

type SealedEntry = { event_sha256: string; number: number; previous: string | null };

const isSuccession = (entry: Buffer, { tree, index }: Place): boolean =>
  index === 0 && tree > 1 && parseSuccession(entry) !== null;

const differs = ({ tree, index }: Place, what: string): CliError =>
  new CliError(`The log differs from its seal at entry ${index} of tree ${tree}: ${what}.`, {
    hint: 'Run: sluice check seal',
  });

/** How many entries of the tree before this one the log still had when this one began. */
async function readKept(folder: AuditDeps['folder'], checkpoint: OpenCheckpoint): Promise<number | null> {
  const first = await readEntry(folder, checkpoint, 0);
  return first === undefined ? null : (parseSuccession(first)?.kept ?? null);
}

/** The event without its secrets, as the API shows it. */
function show({ envelope, data, metadata, dataSalt, metadataSalt }: EventContent) {
  const shown = publicData(JSON.parse(data) as Record<string, unknown>);
  const isWhole = canonicalJson(shown) === data;
  return {
    event: JSON.parse(envelope) as ShownEvent['event'],
    data: shown,
    data_salt: isWhole ? dataSalt : null,
    metadata: JSON.parse(metadata) as object,
    metadata_salt: metadataSalt,
    ...(isWhole ? {} : { withheld: true as const }),
  };
}
