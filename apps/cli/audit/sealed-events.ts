import { hash } from 'node:crypto';
import type { Kysely } from 'kysely';
import type { BlobFolder } from '#libs/blobs/blob-folder.ts';
import type { Database } from '#libs/database/schema.ts';
import { canonicalJson } from '#libs/event-log/canonical-json.ts';
import { readLog, type EventContent, type LogSelection } from '#libs/event-log/read-log.ts';
import { publicData } from '#libs/records/public-event.ts';
import { parseSuccession } from '#libs/seal/entries.ts';
import type { OpenCheckpoint } from '#libs/seal/tree-names.ts';
import { CliError } from '../server/cli-error.ts';
import { readEntries } from './tree-files.ts';

/** A sealed event. `event` is its envelope, whose SHA-256 is in the entry. A salt is null if a part was erased or is secret. */
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
};

/**
 * Yields the events from the first to the last one of the time range, in the order of the log, with their places in the
 * trees. Entries that the log lost when it went back have no event. Throws CliError if an event is not the sealed one.
 */
export async function* readSealedEvents(
  { db, folder }: { db: Kysely<Database>; folder: BlobFolder },
  checkpoints: readonly OpenCheckpoint[],
  selection: LogSelection,
): AsyncGenerator<ShownEvent> {
  const events = readLog(db, selection);
  for (const [at, checkpoint] of checkpoints.entries()) {
    const { tree } = checkpoint;
    const next = checkpoints[at + 1];
    const kept = (next && (await readKept(folder, next))) ?? checkpoint.size;
    let index = -1;
    for await (const bundle of readEntries(folder, checkpoint)) {
      for (const entry of bundle) {
        index += 1;
        if (index >= kept || (index === 0 && tree > 1 && parseSuccession(entry) !== null)) continue;
        const { value: item } = await events.next();
        const { event_sha256: sha256, number, previous } = JSON.parse(entry.toString()) as SealedEntry;
        const place = { tree, index, number, previous };
        if (item === undefined) throw differs(place, 'the log has no event for it');
        if (item === null) continue;
        if (hash('sha256', item.envelope) !== sha256)
          throw differs(place, `the log has another event there, ${item.envelope}`);
        yield { ...place, ...show(item) };
      }
    }
  }
}

type SealedEntry = { event_sha256: string; number: number; previous: string | null };

const differs = ({ tree, index }: { tree: number; index: number }, what: string): CliError =>
  new CliError(`The log differs from its seal at entry ${index} of tree ${tree}: ${what}.`, {
    hint: 'Run: sluice check seal',
  });

async function readKept(folder: BlobFolder, checkpoint: OpenCheckpoint): Promise<number | null> {
  for await (const [first] of readEntries(folder, checkpoint))
    return first === undefined ? null : (parseSuccession(first)?.kept ?? null);
  return null;
}

/** The event without its secrets, as the API shows it. */
function show({
  envelope,
  data,
  metadata,
  dataSalt,
  metadataSalt,
}: EventContent): Pick<ShownEvent, 'event' | 'data' | 'data_salt' | 'metadata' | 'metadata_salt'> {
  const shown = publicData(JSON.parse(data) as Record<string, unknown>);
  return {
    event: JSON.parse(envelope) as Record<string, string | number>,
    data: shown,
    data_salt: canonicalJson(shown) === data ? dataSalt : null,
    metadata: JSON.parse(metadata) as object,
    metadata_salt: metadataSalt,
  };
}
