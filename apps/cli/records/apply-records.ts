import { hash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { writeWhole } from '../../standalone/files/write-whole.ts';
import { ApiError, CliError } from '../server/cli-error.ts';
import { unwritableFile } from '../terminal/file-problem.ts';
import type { Client } from '../server/http-client.ts';
import { isObject } from './read-documents.ts';
import { hasReference, nameOf, resolveReferences, type SecretSources, type WantedRecord } from './record-files.ts';
import { appliedKinds, recordKinds, type RecordKind } from './record-kinds.ts';

/** `before` and `after` are null for an absent value and `(secret)` for a secret one. */
export type FieldChange = { field: string; before: unknown; after: unknown };
export type Step = {
  action: 'create' | 'update' | 'delete' | 'keep';
  kind: RecordKind;
  name: string;
  changes: FieldChange[];
  wanted: WantedRecord | null;
  /** The ID or slug that addresses the record; null before it exists. */
  address: string | null;
};

/** The records that earlier applies of the folder created in one workspace of one server, by `kind/name`. */
type Made = Record<string, { address: string; sha256: string }>;
/** `file` is null for records without a folder, whose state is not stored. */
export type State = { file: string | null; place: string; all: Record<string, Made> };

const stateName = '.sluice-state.json';
const secret = '(secret)';

/** The state of a folder, stored with its files. It contains hashes of specs and no secrets. */
export async function readState(folder: string, place: string): Promise<State> {
  const file = path.join(folder, stateName);
  const text = await readFile(file, 'utf8').catch(() => '{}');
  try {
    const all: unknown = JSON.parse(text);
    if (isObject(all)) return { file, place, all: all as State['all'] };
  } catch {
    // The error is reported below.
  }
  throw new CliError(`${file} is damaged.`, {
    hint: 'Restore it. Without it, --prune does not know what it can delete.',
  });
}

const specHash = (spec: unknown): string => hash('sha256', JSON.stringify(spec));

/** The steps that make the server match the files: creations and changes in order, then deletions. */
export async function planRecords(
  client: Client,
  wanted: readonly WantedRecord[],
  state: State,
  options: { prune: boolean; sendSecrets: boolean },
): Promise<{ steps: Step[]; orphans: string[] }> {
  const made = state.all[state.place] ?? {};
  const steps: Step[] = [];
  const listed = new Map<string, { id: string; name?: string }[]>();
  const slugs: Slugs = new Map();
  for (const record of wanted) {
    const { kind, name, spec } = record;
    const current = await findRecord(client, record, listed);
    if (current === null) {
      const changes = Object.entries(spec).map(([field, after]) => ({ field, before: null, after: shown(after) }));
      steps.push({ action: 'create', kind, name, changes, wanted: record, address: null });
      continue;
    }
    const bySlug = await withSlugs(client, kind, current, slugs);
    // A member that is a provider's setting is returned below `settings`.
    const has = { ...(isObject(current['settings']) ? current['settings'] : {}), ...current };
    const isAsApplied = made[nameOf(record)]?.sha256 === specHash(spec);
    const changes = Object.entries(spec).flatMap(([field, after]): FieldChange[] => {
      if (hasReference(after)) return options.sendSecrets ? [{ field, before: secret, after: secret }] : [];
      // A member that the server does not return is compared with the last apply.
      if (!(field in has)) return isAsApplied ? [] : [{ field, before: null, after }];
      return covers(has[field], after) || covers(bySlug[field], after)
        ? []
        : [{ field, before: bySlug[field] ?? has[field] ?? null, after }];
    });
    const address = String(current[kind.address] ?? current['id']);
    steps.push({ action: changes.length === 0 ? 'keep' : 'update', kind, name, changes, wanted: record, address });
  }
  const names = new Set(wanted.map(nameOf));
  const orphans = Object.keys(made).filter((name) => !names.has(name));
  if (options.prune) {
    const deletions = orphans.flatMap((orphan): Step[] => {
      const [kindName = '', ...rest] = orphan.split('/');
      const kind = appliedKinds.find((each) => each.kind === kindName);
      if (kind === undefined) return [];
      const address = made[orphan]?.address ?? null;
      return [{ action: 'delete', kind, name: rest.join('/'), changes: [], wanted: null, address }];
    });
    const rank = ({ kind }: Step): number => appliedKinds.indexOf(kind);
    steps.push(...deletions.toSorted((a, b) => rank(b) - rank(a)));
  }
  return { steps, orphans };
}

/** Does one step and records it in the state. Throws ApiError, and CliError for a missing secret. */
export async function applyStep(client: Client, step: Step, state: State, sources: SecretSources): Promise<void> {
  const resolved = async (spec: object): Promise<object> => (await resolveReferences(spec, sources)) as object;
  const { action, kind, wanted } = step;
  const key = nameOf(step);
  const made = (state.all[state.place] ??= {});
  const at = (address: string): string => `${kind.path}/${encodeURIComponent(address)}`;
  if (action === 'delete') {
    await client.json('DELETE', at(step.address ?? '')).catch((error: unknown) => {
      if (!(error instanceof ApiError && error.status === 404)) throw error;
    });
    delete made[key];
  } else if (wanted !== null) {
    let { address } = step;
    if (action === 'create') {
      const given = kind.address === 'slug' ? { name: wanted.name, slug: wanted.name } : { name: wanted.name };
      const json = { ...given, ...(await resolved(wanted.spec)) };
      const record = await client.json<Record<string, unknown>>('POST', kind.path, { json });
      address = String(record[kind.address] ?? record['id']);
    } else if (action === 'update') {
      const fields = new Set(step.changes.map(({ field }) => field));
      const changed = Object.fromEntries(Object.entries(wanted.spec).filter(([field]) => fields.has(field)));
      await client.json('PUT', at(address ?? ''), { json: await resolved(changed) });
      if (kind.isPublishedOnRequest) await publishNewest(client, at(address ?? ''));
    }
    made[key] = { address: address ?? '', sha256: specHash(wanted.spec) };
  }
  const { file } = state;
  if (file === null) return;
  await writeWhole(file, `${JSON.stringify(state.all, null, 2)}\n`, 0o644).catch((error: unknown) => {
    throw unwritableFile(file, error, `${key} was applied, but --prune will not know that it came from this folder.`);
  });
}

async function publishNewest(client: Client, at: string): Promise<void> {
  type Version = Record<string, unknown>;
  const answer = await client.json<Version[] | { data: Version[] }>('GET', `${at}/versions`);
  const versions = Array.isArray(answer) ? answer : answer.data;
  const numbers = versions.map((version) => Number(version['prompt_version'] ?? version['version']));
  await client.json('PUT', `${at}/makeDefault`, { json: { version: Math.max(...numbers) } });
}

async function findRecord(
  client: Client,
  { kind, name }: WantedRecord,
  listed: Map<string, { id: string; name?: string }[]>,
): Promise<Record<string, unknown> | null> {
  if (kind.address === 'slug') return await get(client, `${kind.path}/${encodeURIComponent(name)}`);
  const records = listed.get(kind.kind) ?? (await client.list<{ id: string; name?: string }>(kind.path, {}, 10_000));
  listed.set(kind.kind, records);
  const [found, second] = records.filter((each) => each.name === name);
  if (second !== undefined) {
    throw new CliError(
      `Several ${kind.many} have the name ${name}. Rename them, so that files can refer to one of them.`,
    );
  }
  return found === undefined ? null : await get(client, `${kind.path}/${found.id}`);
}

async function get(client: Client, at: string): Promise<Record<string, unknown> | null> {
  try {
    return await client.json<Record<string, unknown>>('GET', at);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

export type Slugs = Map<string, string>;

/** Replaces the IDs of other records, which the server returns, with the slugs that people write. `slugs` caches them. */
export async function withSlugs(
  client: Client,
  { applied }: RecordKind,
  record: Record<string, unknown>,
  slugs: Slugs,
): Promise<Record<string, unknown>> {
  const named = { ...record };
  for (const [kind, member] of Object.entries(applied?.refersTo ?? {})) {
    const id = member === null ? null : record[member];
    if (member === null || typeof id !== 'string') continue;
    const at = recordKinds.find((each) => each.kind === kind)?.path;
    const found = slugs.get(id) ?? (await get(client, `${at}/${encodeURIComponent(id)}`))?.['slug'];
    const slug = typeof found === 'string' ? found : id;
    slugs.set(id, slug);
    named[member] = slug;
  }
  return named;
}

const shown = (value: unknown): unknown => (hasReference(value) ? secret : value);

/** Whether the server's value contains the wanted one. It can have more members, which the server added. */
function covers(has: unknown, wanted: unknown): boolean {
  if (Array.isArray(wanted) && Array.isArray(has))
    return has.length === wanted.length && wanted.every((each, at) => covers(has[at], each));
  if (isObject(wanted) && isObject(has))
    return Object.entries(wanted).every(([name, member]) => covers(has[name], member));
  if (typeof wanted === 'string' && typeof has === 'string' && /^\d{4}-\d\d-\d\dT/.test(wanted))
    return Date.parse(wanted) === Date.parse(has);
  return isDeepStrictEqual(has ?? null, wanted ?? null);
}
