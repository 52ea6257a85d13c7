import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import type { Command } from 'commander';
import { applyStep, planRecords, readState, withSlugs, type Slugs, type State, type Step } from './apply-records.ts';
import { clientCommand, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { unwritableFile } from '../terminal/file-problem.ts';
import type { Client } from '../server/http-client.ts';
import { readSession } from '../server/login-commands.ts';
import { note, print, showsTable } from '../terminal/output.ts';
import { printable } from '../terminal/table.ts';
import { isObject } from './read-documents.ts';
import {
  isCredential,
  mapMembers,
  nameOf,
  readRecordFiles,
  secretVariable,
  writeSpec,
  type SecretSources,
} from './record-files.ts';
import { appliedKinds } from './record-kinds.ts';
import { writeDocument } from './write-document.ts';

type Options = ClientOptions & {
  file: string;
  prune?: boolean;
  sendSecrets?: boolean;
  allowFiles?: string[];
  exitCode?: boolean;
};

/** Adds `sluice apply`, `diff` and `export`: records as files. */
export function addApplyCommands(program: Command): void {
  const withFiles = (command: Command): Command =>
    command
      .requiredOption('-f, --file <folder>', 'folder of the files; each document is one record')
      .option('--prune', 'delete records of earlier applies of this folder that no file contains anymore')
      .option('--send-secrets', 'resend the secrets of existing records, which cannot be compared');

  withFiles(clientCommand(program, 'diff', 'show what apply would change'))
    .option('--exit-code', 'exit with status 1 if there are changes')
    .action(async (options: Options) => {
      const { steps } = await plan(await connect(options), options);
      for (const step of steps) show(step, options);
      note(`planned: ${readTokenCounts(steps, ['to create', 'to change', 'to delete'])}`);
      if (steps.some(({ action }) => action !== 'keep'))
        note(`To apply: sluice apply -f ${options.file}${options.prune ? ' --prune' : ''}`);
      if (options.exitCode === true && steps.some(({ action }) => action !== 'keep')) process.exitCode = 1;
    });

  withFiles(clientCommand(program, 'apply', 'create and update records from the files of a folder'))
    .option('--allow-files <folders...>', 'folders from which ${file:/path} can read secrets (default: none)')
    .action(async (options: Options) => {
      const client = await connect(options);
      const { steps, state } = await plan(client, options);
      await applySteps(client, steps, state, { folders: options.allowFiles ?? [] }, options);
    });

  clientCommand(program, 'export', 'write existing records as files for apply, without secrets')
    .requiredOption('-d, --dir <folder>', 'created if missing; overwrites files in it')
    .action(async (options: ClientOptions & { dir: string }) => {
      await exportRecords(await connect(options), options.dir);
    });
}

/** Does all steps and prints each of them. Throws the errors of `applyStep`; the steps before it are done. */
export async function applySteps(
  client: Client,
  steps: readonly Step[],
  state: State,
  sources: SecretSources,
  options: ClientOptions,
): Promise<void> {
  for (const step of steps) {
    await applyStep(client, step, state, sources);
    show(step, options);
  }
  note(`done: ${readTokenCounts(steps, ['created', 'changed', 'deleted'])}`);
}

async function plan(client: Client, options: Options) {
  const wanted = await readRecordFiles(options.file);
  const { workspace } = await readSession(client);
  const state = await readState(options.file, `${client.server} ${workspace.id}`);
  const { prune = false, sendSecrets = false } = options;
  const { steps, orphans } = await planRecords(client, wanted, state, { prune, sendSecrets });
  if (orphans.length > 0 && !prune)
    note(`No file contains ${orphans.join(', ')} anymore. To delete them, add --prune.`);
  return { steps, state };
}

const signs = { create: '+', update: '~', delete: '-', keep: '=' } as const;

function show(step: Step, options: ClientOptions): void {
  const { action, kind, name, changes } = step;
  if (!showsTable(options)) {
    print(JSON.stringify({ action, kind: kind.kind, name, changes }));
    return;
  }
  if (action === 'keep') return;
  print(printable(`${signs[action]} ${nameOf(step)}`));
  for (const { field, before, after } of changes) {
    if (before !== null) print(printable(`    - ${field}: ${JSON.stringify(before)}`));
    print(printable(`    + ${field}: ${JSON.stringify(after)}`));
  }
}

function readTokenCounts(
  steps: readonly Step[],
  words: readonly [create: string, update: string, remove: string],
): string {
  const count = (wanted: Step['action']): number => steps.filter(({ action }) => action === wanted).length;
  const [create, update, remove] = words;
  return `${count('create')} ${create}, ${count('update')} ${update}, ${count('delete')} ${remove}, ${count('keep')} unchanged`;
}

type Operation = { requestBody?: { content?: Record<string, { schema?: unknown }> } };
type Document = { paths: Record<string, Record<string, Operation>>; components: { schemas: Record<string, unknown> } };

/** Aliases of other members, and the workspace or organisation of the record. */
const leftOut: ReadonlySet<string> = new Set(['isDefault', 'slug', 'workspace_id', 'organisation_id']);

/** The next reset of a budget changes over time: in a file, it would be a permanent difference. */
const withoutComputed = (name: unknown, value: unknown): unknown =>
  name === 'next_usage_reset_at' ? undefined : value;

async function exportRecords(client: Client, folder: string): Promise<void> {
  const document = await client.json<Document>('GET', '/openapi.json');
  const slugs: Slugs = new Map();
  let written = 0;
  for (const kind of appliedKinds) {
    const fields = fieldsOf(document, kind.path).filter((field) => !leftOut.has(field));
    for (const { id, slug } of await client.list<{ id: string; slug?: string }>(kind.path, {}, 10_000)) {
      const at = `${kind.path}/${encodeURIComponent(slug ?? id)}`;
      const record = await withSlugs(client, kind, await client.json<Record<string, unknown>>('GET', at), slugs);
      const settings = isObject(record['settings']) ? record['settings'] : {};
      const has = { ...settings, ...record };
      const shown = Object.fromEntries(
        fields.filter((field) => has[field] !== null && has[field] !== undefined).map((field) => [field, has[field]]),
      );
      const name = String(kind.address === 'slug' ? (record['slug'] ?? slug) : record['name']);
      const variableFor = (member: string): string => `\${env:${secretVariable(kind.kind, name, member)}}`;
      const withReferences = (value: unknown, member: string): unknown =>
        isCredential(kind, member)
          ? variableFor(member.split('/').at(-1) ?? '')
          : mapMembers(value, member, withReferences);
      const spec = withReferences(writeSpec(shown), '') as Record<string, unknown>;
      if (fields.includes('key') && (record['last_four'] || record['masked_key'])) spec['key'] = variableFor('key');
      if (kind.address === 'id') delete spec['name'];
      const document = { kind: kind.kind, [kind.address === 'slug' ? 'slug' : 'name']: name, spec };
      const text = await writeDocument(document, withoutComputed);
      const file = path.join(folder, kind.command, `${name.replaceAll(/[^\w.-]/g, '_')}.yaml`);
      try {
        await mkdir(path.dirname(file), { recursive: true });
        await writeFile(file, text);
      } catch (error) {
        throw unwritableFile(file, error, `${written} records were already written.`);
      }
      written += 1;
    }
  }
  note(`${written} records written to ${folder}`);
}

/** The members that the server accepts when a record is created, from its OpenAPI document. */
function fieldsOf({ paths, components }: Document, at: string): string[] {
  let schema = paths[at]?.['post']?.requestBody?.content?.['application/json']?.schema;
  const named = isObject(schema) && typeof schema['$ref'] === 'string' ? schema['$ref'].split('/').at(-1) : undefined;
  if (named !== undefined) schema = components.schemas[named];
  return isObject(schema) && isObject(schema['properties']) ? Object.keys(schema['properties']) : [];
}
