import { readFileSync } from 'node:fs';
import path from 'node:path';
import type { EventMetadata, RecordedEvent } from '#libs/event-log/event.ts';

/** An event of the golden log, with its salts and its hash at the time when it was added. */
export type GoldenEvent = {
  event: RecordedEvent;
  metadata: EventMetadata;
  dataSalt: string;
  metadataSalt: string;
  sha256: string;
};

type GoldenLine = Pick<GoldenEvent, 'metadata' | 'sha256'> & {
  data_salt: string;
  metadata_salt: string;
  type: string;
  data: object;
  event_id: string;
  workspace_id: string;
  stream_id: string;
  stream_version: number;
  schema_version: number;
  recorded_at: string;
};

/**
 * Every event type in every schema version that was ever merged, in valid streams. Lines are added for new types and
 * versions and never changed, because installations have such events.
 */
export function readGoldenLog(): GoldenEvent[] {
  return (readLines('golden-log.jsonl') as GoldenLine[]).map((line) => ({
    event: {
      type: line.type,
      data: line.data,
      eventId: line.event_id,
      workspaceId: line.workspace_id,
      streamId: line.stream_id,
      streamVersion: line.stream_version,
      schemaVersion: line.schema_version,
      recordedAt: new Date(line.recorded_at),
    },
    metadata: line.metadata,
    dataSalt: line.data_salt,
    metadataSalt: line.metadata_salt,
    sha256: line.sha256,
  }));
}

/** The rows that the golden log folds to: model and row, times in ISO 8601. */
export const readGoldenRows = (): { model: string; row: { id: string } }[] => readLines('golden-rows.jsonl') as never;

function readLines(file: string): unknown[] {
  const text = readFileSync(path.join(import.meta.dirname, 'fixtures', file), 'utf8');
  return text
    .trimEnd()
    .split('\n')
    .map((line): unknown => JSON.parse(line));
}
