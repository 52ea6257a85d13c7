import path from 'node:path';
import { expect, test } from 'vitest';
import { importsOf, productFiles, projectFiles, readSource } from './source-files.ts';

// Checks the structure that docs/ARCHITECTURE.md describes. Exceptions are listed by name, and an entry that is no
// longer needed must be removed.

/** The layers of docs/ARCHITECTURE.md from top to bottom. Folders (or files) on one line do not import each other. */
const layers = (/^```layers\n(.*?)\n```$/ms.exec(readSource('docs/ARCHITECTURE.md'))?.[1] ?? '')
  .split('\n')
  .map((line) => line.split(/[\s,]+/).filter((place) => place !== ''));
const places = layers.flatMap((line, rank) => line.map((place) => ({ place, rank })));

/** The most specific entry of the list that contains a file. */
const placeOf = (file: string) =>
  places
    .filter(({ place }) => file === place || file.startsWith(`${place}/`))
    .toSorted((a, b) => b.place.length - a.place.length)[0];

test('docs/ARCHITECTURE.md names one file for each question of where something is decided', () => {
  const section = /^## Where is it decided\?\n(.*?)^## /ms.exec(readSource('docs/ARCHITECTURE.md'))?.[1] ?? '';
  const rows = section.split('\n').filter((line) => /^\| (?!question|-)/.test(line));
  expect(rows).toHaveLength(21);
  const named = rows.map((row) => /^\|[^|`]+\| `([^`|]+)` +\|/.exec(row)?.[1] ?? row);
  expect(named.filter((file) => !productFiles.includes(file))).toEqual([]);
  expect(new Set(named).size).toBe(21);
});

/** The imports that still lead upwards or sideways, and why. */
const knownUpwards: Readonly<Record<string, string>> = {
  'apps/standalone -> apps/cli': 'the demo ends with a check of the log, as the command does it',
  'libs/resources -> libs/people': 'rotating a leaked key cancels the invites that it made',
};

test('every folder of apps and libs has its layer', () => {
  expect(layers.length).toBeGreaterThan(5);
  expect(productFiles.filter((file) => placeOf(file) === undefined)).toEqual([]);
  const nowhere = places.filter(({ place }) => !productFiles.some((file) => placeOf(file)?.place === place));
  expect(nowhere).toEqual([]);
});

test('imports lead downwards only', () => {
  const upwards = productFiles.flatMap((file) =>
    importsOf(file).flatMap((imported) => {
      const [from, to] = [placeOf(file), placeOf(imported)];
      if (!from || !to || from.place === to.place || from.rank < to.rank) return [];
      return [{ way: `${from.place} -> ${to.place}`, line: `${file} -> ${imported}` }];
    }),
  );
  expect(upwards.filter(({ way }) => !(way in knownUpwards)).map(({ line }) => line)).toEqual([]);
  expect(Object.keys(knownUpwards).filter((known) => !upwards.some(({ way }) => way === known))).toEqual([]);
});

test('no file imports itself through others', () => {
  const circles = circlesAmong(projectFiles.filter((file) => /^(?:apps|libs|test)\/.*\.ts$/.test(file)));
  expect(circles).toEqual([]);
});

/** The groups of files that reach each other by imports (Tarjan), each in order. */
function circlesAmong(files: readonly string[]): string[][] {
  const known = new Set(files);
  const order = new Map<string, number>();
  const lowest = new Map<string, number>();
  const trail: string[] = [];
  const circles: string[][] = [];
  const visit = (file: string): number => {
    const index = order.size;
    order.set(file, index);
    lowest.set(file, index);
    trail.push(file);
    for (const next of importsOf(file).filter((imported) => known.has(imported))) {
      const reached = order.has(next) ? (trail.includes(next) ? order.get(next) : undefined) : visit(next);
      if (reached !== undefined) lowest.set(file, Math.min(lowest.get(file) ?? index, reached));
    }
    if (lowest.get(file) !== index) return lowest.get(file) ?? index;
    const circle = trail.splice(trail.indexOf(file));
    if (circle.length > 1) circles.push(circle.toSorted());
    return index;
  };
  for (const file of files) if (!order.has(file)) visit(file);
  return circles;
}

const records: readonly string[] = ['libs/records', 'libs/resources', 'libs/people'];

/** Who may read and write each table of libs/database/schema.ts. `installation` has values of several. */
const owners: Readonly<Record<string, string | readonly string[]>> = {
  event: 'libs/event-log',
  event_epoch: 'libs/event-log',
  subscription_checkpoint: 'libs/event-log',
  seal: 'libs/seal',
  seal_workspace: 'libs/seal',
  seal_place: 'libs/seal',
  command_result: 'libs/event-log',
  installation: '',
  resource: records,
  resource_version: records,
  secret: 'libs/secrets',
  access_version: 'libs/identity',
  activity: 'libs/activity',
  file: 'libs/files',
  batch: 'libs/batches',
  batch_chunk: 'libs/batches',
  batch_share: 'libs/batches',
  batch_turn: 'libs/batches',
  worker_process: 'libs/queue',
  batch_result: 'libs/batches',
  batch_line_report: 'libs/batches',
  fine_tuning_job: 'libs/fine-tuning',
  request_log: 'libs/request-log',
  request_log_row: 'libs/request-log',
  request_log_pack: 'libs/request-log',
  request_log_process: 'libs/request-log',
  request_log_day: 'libs/request-log',
  request_log_change: 'libs/request-log',
  request_log_deleted: 'libs/request-log',
  call_seal: 'libs/request-log',
  call_seal_due: 'libs/request-log',
  call_seal_position: 'libs/request-log',
  log_export_part: 'libs/request-log',
  webhook_delivery: 'libs/resources',
  siem_cursor: 'libs/resources',
  recorded_bodies: 'libs/request-log',
  upload: 'libs/files',
  upload_part: 'libs/files',
  feedback: 'libs/analytics',
  call_rollup: 'libs/analytics',
  value_rollup: 'libs/analytics',
  metadata_rollup: 'libs/analytics',
  rollup_state: 'libs/analytics',
  rollup_key: 'libs/analytics',
  response_cache: 'libs/calls/protect/response-cache',
  provider_circuit: 'libs/calls/protect/traffic',
  stored_object: 'libs/calls/protect/stored-objects',
  late_usage: 'libs/policies',
  limit_counter: 'libs/limits',
  call_limit: 'libs/limits',
};

/** Which code names a table of another feature, and why. */
const knownReaders: Readonly<Record<string, string>> = {
  'apps/api: resource': 'ready only once there is a workspace',
  'apps/platform: batch': 'counts open batches',
  'apps/platform: fine_tuning_job': 'counts open jobs',
  'apps/worker: batch': 'finds the target of a batch',
  'apps/worker: command_result': 'deletes what is too old',
  'libs/files: batch': 'a blob stays while a batch needs it',
  'libs/files: fine_tuning_job': 'a blob stays while a job needs it',
  'libs/analytics: request_log': 'rollups are made from it, and it answers what they cannot',
  'libs/analytics: request_log_row': 'minutes of rollups are made from it',
  'libs/analytics: request_log_pack': 'minutes of rollups are made from its sums',
  'libs/analytics: request_log_change': 'says what is to be rolled up',
  'libs/analytics: request_log_deleted': 'rollups of deleted calls stay as they are',
  'libs/activity: event': 'a row of activity shows the data of its event',
  'libs/fine-tuning: event': 'events and checkpoints of a job are read from the log itself',
  'apps/api: log_export_part': 'sends the parts of a file one after another',
  'libs/request-log: secret': 'deletes the keys of bodies that have expired',
  'libs/files: batch_result': 'a blob stays while it has results of lines',
  'libs/files: recorded_bodies': 'a blob stays while it has recorded bodies',
  'libs/files: log_export_part': 'a blob stays while an export needs it',
  'libs/policies: resource': 'an alert names its record, and the addresses that it has',
  'libs/resources: log_export_part': 'says how far an export is',
  'libs/request-log: feedback': 'calls are filtered by the feedback on their trace',
  'libs/request-log: resource': 'an export is a record, whose state its worker reads',
  'libs/request-log: batch': 'when a batch ran, to read few partitions',
  'libs/replays: resource': 'a traffic replay is a record, whose state its worker reads',
  'libs/replays: batch': 'the batches of a traffic replay, and that of its originals',
  'libs/records: secret': 'reads the secrets of many records in one query',
};

test('every table has an owner, and nobody else reads or writes it', () => {
  const schema = /export type Database = \{(.*?)\n\};/s.exec(readSource('libs/database/schema.ts'))?.[1] ?? '';
  expect([...schema.matchAll(/^ {2}(\w+):/gm)].map(([, table = '']) => table).toSorted()).toEqual(
    Object.keys(owners).toSorted(),
  );
  const readers = productFiles.flatMap((file) =>
    tablesIn(readSource(file))
      .filter((table) => ![owners[table] ?? ''].flat().some((owner) => file.startsWith(owner)))
      .map((table) => ({ who: `${placeOf(file)?.place}: ${table}`, line: `${file}: ${table}` })),
  );
  expect(readers.filter(({ who }) => !(who in knownReaders)).map(({ line }) => line)).toEqual([]);
  expect(Object.keys(knownReaders).filter((known) => !readers.some(({ who }) => who === known))).toEqual([]);
});

/** The tables that a file's queries name, in Kysely or in SQL. */
function tablesIn(text: string): string[] {
  const code = text.replaceAll(/^\s*(?:\/\/|\/?\*).*$/gm, '').replaceAll(/^import .*$/gm, '');
  const byBuilder = /(?:selectFrom|insertInto|updateTable|deleteFrom|[jJ]oin|mergeInto)\(\[?\s*['"](\w+)/g;
  const bySql = /\b(?:from|join|into|update|using|table|copy)\s+(\w+)\b(?!\s*\()/g;
  const sql = [...code.matchAll(/`[^`]*`|'(?:select|insert|update|delete|copy|with)\b[^']*'/g)].map(([part]) => part);
  const named = [...code.matchAll(byBuilder), ...sql.flatMap((part) => [...part.matchAll(bySql)])];
  return [...new Set(named.map(([, table]) => table ?? ''))].filter((table) => table in owners);
}

test('a helper with one importer in its folder is in that file, not in a file of a few lines', () => {
  const importers = new Map<string, string[]>();
  for (const file of productFiles)
    for (const imported of importsOf(file)) importers.set(imported, [...(importers.get(imported) ?? []), file]);
  // Routes and providers have one file each, and a thread needs a file of its own.
  const small = productFiles.filter((file) => {
    const [importer = '', ...others] = importers.get(file) ?? [];
    return (
      others.length === 0 &&
      path.dirname(importer) === path.dirname(file) &&
      !/^libs\/providers\/\w+\/index\.ts$|-worker\.ts$/.test(file) &&
      readSource(file).split('\n').length <= 30
    );
  });
  expect(small).toEqual([]);
});

test('only find-by-name.ts finds a record by its ID or its slug', () => {
  const both =
    /\b(?:id|slug)\b[^`]{0,60}\bor\b[^`]{0,40}\b(?:id|slug)\b\s*(?:=|in\b)|\bin \((?:\w+\.)?id, (?:\w+\.)?slug/i;
  const found = productFiles.flatMap((file) =>
    [...readSource(file).matchAll(/sql(?:<[^`]*?>)?`[^`]*`/g)]
      .filter(([query]) => both.test(query) && /\bid\b/.test(query) && /\bslug\b/.test(query))
      .map(([query]) => `${file}: ${query.replaceAll(/\s+/g, ' ')}`),
  );
  expect(found).toEqual([]);
});

test('only the blob store uses the AWS SDK, whose default credentials are those of the operator', () => {
  const users = productFiles.filter((file) => /'@aws-sdk\/|credential-provider/.test(readSource(file)));
  expect(users.filter((file) => !file.startsWith('libs/blobs/s3-'))).toEqual([]);
  expect(users.length).toBeGreaterThan(0);
});
