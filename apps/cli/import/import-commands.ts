import { writeFile } from 'node:fs/promises';
import { Option, type Command } from 'commander';
import { applySteps } from '../records/apply-commands.ts';
import { planRecords, type State, type Step } from '../records/apply-records.ts';
import { readObject } from '../records/read-documents.ts';
import { toRecords } from '../records/record-files.ts';
import { writeDocument } from '../records/write-document.ts';
import { CliError } from '../server/cli-error.ts';
import { addGroup, clientCommand, type ClientOptions } from '../server/client-command.ts';
import { variableOf } from '../server/config.ts';
import { connect } from '../server/connection.ts';
import { unwritableFile } from '../terminal/file-problem.ts';
import { note, print, showsTable } from '../terminal/output.ts';
import { printable } from '../terminal/table.ts';
import type { RecordDocument } from './litellm/record-document.ts';
import type { FieldLine } from './litellm/source-node.ts';
import type { Translation } from './litellm/translate.ts';

type Options = ClientOptions & { apply?: boolean; out?: string; allowFiles?: string[] };

/** Adds `sluice import`: records from the files of other gateways. */
export function addImportCommands(program: Command): void {
  const group = addGroup(program, 'import', 'create records from the configuration of another gateway');
  clientCommand(group, 'litellm <file>', "translate the config.yaml of LiteLLM's proxy into records")
    .addOption(
      new Option('--plan', 'print what becomes of each field, and change nothing (default)').conflicts('apply'),
    )
    .option('--apply', 'also create and update the records, as sluice apply does')
    .option('--out <file>', 'also write the records to a file for sluice apply, without secrets')
    .option('--allow-files <folders...>', 'folders from which files of secrets can be read (default: none)')
    .action(async (file: string, options: Options) => {
      // Only this command needs the providers, whose code takes longer to load than most commands run.
      const { translateLiteLlm } = await import('./litellm/translate.ts');
      const translation = translateLiteLlm(await readObject(file, { merge: true }), variableOf);
      showReport(translation, options);
      if (options.out !== undefined) await writeRecords(options.out, translation.records);
      if (options.apply === true) await applyTranslation(file, translation, options);
      else note(`To apply: sluice import litellm ${file} --apply`);
    });
}

const signs = { same: '=', changed: '~', unsupported: '!' } as const;

function showReport({ lines, records, missing }: Translation, options: ClientOptions): void {
  for (const line of lines) print(showsTable(options) ? describe(line) : JSON.stringify(line));
  const count = (wanted: FieldLine['outcome']): number => lines.filter(({ outcome }) => outcome === wanted).length;
  note(`same (=): ${count('same')}, changed (~): ${count('changed')}, not supported (!): ${count('unsupported')}`);
  const kinds = [...new Set(records.map(({ kind }) => kind))];
  const counts = kinds.map((kind) => `${records.filter((record) => record.kind === kind).length} ${kind}`);
  note(`records: ${counts.join(', ') || 'none'}`);
  const variables = [...new Set(records.flatMap(listVariables))].toSorted();
  if (variables.length > 0) note(`secrets: ${variables.join(', ')}`);
  if (missing.length > 0) note(`not set: ${missing.join(', ')}. What needs these variables was left out.`);
}

const describe = ({ field, outcome, detail }: FieldLine): string =>
  printable(`${signs[outcome]} ${field}${detail === null ? '' : `: ${detail}`}`);

/** The variables that a record refers to for its secrets. */
const listVariables = ({ kind, spec }: RecordDocument): string[] =>
  kind !== 'virtual_key'
    ? []
    : Object.values(spec).flatMap((value) => /^\$\{env:(.+)\}$/.exec(String(value))?.[1] ?? []);

async function writeRecords(file: string, records: readonly RecordDocument[]): Promise<void> {
  const texts = await Promise.all(records.map((record) => writeDocument(record)));
  await writeFile(file, texts.join('---\n')).catch((error: unknown) => {
    throw unwritableFile(file, error);
  });
  note(`${records.length} records written to ${file}`);
}

/** Applies records as `sluice apply` does. Secrets that the file contains are used, and never printed. */
async function applyTranslation(file: string, translation: Translation, options: Options): Promise<void> {
  const { records, missing, secrets } = translation;
  if (missing.length > 0) {
    throw new CliError(`These variables are not set: ${missing.join(', ')}.`, {
      hint: 'Set them, or remove the fields that refer to them. Nothing was applied.',
    });
  }
  const variable = (name: string): string | undefined => secrets.get(name) ?? variableOf(name);
  const wanted = toRecords(records.map((document) => ({ document, file })));
  const client = await connect(options);
  const state: State = { file: null, place: '', all: {} };
  const { steps } = await planRecords(client, wanted, state, { prune: false, sendSecrets: false });
  const unset = listNewSecrets(steps, records).filter((name) => variable(name) === undefined);
  if (unset.length > 0) {
    throw new CliError(`These variables are not set: ${unset.join(', ')}.`, {
      hint: 'New virtual keys take their secrets from them. Nothing was applied.',
    });
  }
  await applySteps(client, steps, state, { folders: options.allowFiles ?? [], variable }, options);
}

/** The variables with the secrets of records that do not exist yet. */
function listNewSecrets(steps: readonly Step[], records: readonly RecordDocument[]): string[] {
  const created = new Set(steps.filter(({ action }) => action === 'create').map(({ name }) => name));
  return records.flatMap((record) => (created.has(record.slug ?? '') ? listVariables(record) : []));
}
