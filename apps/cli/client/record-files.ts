import { readdir, readFile } from 'node:fs/promises';
import path from 'node:path';
import { CliError } from './cli-error.ts';
import { variableOf } from './config.ts';
import { cannotRead } from './file-problem.ts';
import { isObject, readDocuments } from './read-documents.ts';
import { recordKinds, type RecordKind } from './record-kinds.ts';

/** A record as a file describes it. `name` is its slug, or its name where the kind has no slugs. */
export type WantedRecord = {
  kind: RecordKind;
  name: string;
  spec: Record<string, unknown>;
  file: string;
};

/** The kinds that files can describe, each after those that its records name. */
export const appliedKinds: readonly RecordKind[] = [
  'secret_reference',
  'integration',
  'provider',
  'virtual_key',
  'guardrail',
  'config',
  'collection',
  'label',
  'prompt_partial',
  'prompt',
  'usage_limit_policy',
  'rate_limit_policy',
].flatMap((wanted) => recordKinds.filter(({ kind }) => kind === wanted));

const filesMax = 2_000;
const reference = /^\$\{(env|file):([^}]+)\}$/;

/** Members that are credentials, of the kinds that have any. They are in files as references only. */
const secretName = /^key$|secret_access_key|session_token|client_secret|ad_token|service_account_json|password/;
const secretKinds: ReadonlySet<string> = new Set(['virtual_key', 'integration', 'secret_reference']);

/**
 * The records that the files of a folder describe, in the order in which they are applied. Throws CliError for a document that is not one,
 * for two of the same record, and for a secret that stands in the file itself.
 */
export async function readRecordFiles(folder: string): Promise<WantedRecord[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch((error: unknown) => {
    throw cannotRead(folder, error);
  });
  const files = entries
    .filter((entry) => entry.isFile() && /\.(?:ya?ml|json)$/.test(entry.name) && !entry.name.startsWith('.'))
    .map((entry) => path.join(entry.parentPath, entry.name))
    .sort();
  if (files.length === 0) throw new CliError(`${folder} has no files of records (*.yaml, *.yml, *.json).`);
  if (files.length > filesMax) throw new CliError(`${folder} has more than ${filesMax} files of records.`);
  const records: WantedRecord[] = [];
  for (const file of files) for (const document of await readDocuments(file)) records.push(toRecord(document, file));
  const seen = new Map<string, string>();
  for (const record of records) {
    const before = seen.get(nameOf(record));
    if (before !== undefined) throw new CliError(`${nameOf(record)} is in ${before} and in ${record.file}. Keep one.`);
    seen.set(nameOf(record), record.file);
  }
  const rank = ({ kind }: WantedRecord): number => appliedKinds.indexOf(kind);
  return records.toSorted((a, b) => rank(a) - rank(b));
}

/** `config/support`: how a record is named to people. */
export const nameOf = ({ kind, name }: Pick<WantedRecord, 'kind' | 'name'>): string => `${kind.kind}/${name}`;

function toRecord(document: unknown, file: string): WantedRecord {
  const wrong = (text: string): CliError =>
    new CliError(`${file}: ${text}`, {
      hint: 'A record is written as kind, slug (or name) and spec: see sluice export.',
    });
  if (!isObject(document)) throw wrong('a document must be an object.');
  const { kind: kindName, slug, name, spec, ...others } = document;
  const [other] = Object.keys(others);
  if (other !== undefined) throw wrong(`'${other}' is unknown here. What the record has belongs into spec.`);
  const kind = appliedKinds.find((each) => each.kind === kindName);
  if (kind === undefined) {
    throw wrong(`kind must be one of ${appliedKinds.map((each) => each.kind).join(', ')}.`);
  }
  const given = kind.address === 'slug' ? slug : name;
  const label = kind.address === 'slug' ? 'slug' : 'name';
  if (typeof given !== 'string' || given === '') throw wrong(`a ${kind.kind} needs a ${label}.`);
  if (!isObject(spec)) throw wrong('spec must be an object.');
  if (secretKinds.has(kind.kind)) refuseSecrets(spec, wrong);
  const full = kind.address === 'slug' && typeof name === 'string' ? { name, ...spec } : spec;
  return { kind, name: given, spec: full, file };
}

function refuseSecrets(value: Record<string, unknown>, wrong: (text: string) => CliError): void {
  for (const [name, member] of Object.entries(value)) {
    if (isObject(member)) refuseSecrets(member, wrong);
    else if (secretName.test(name) && typeof member === 'string' && !reference.test(member)) {
      throw wrong(
        `${name} is a secret, and must be a reference: \${env:NAME} or \${file:/path}, read when it is applied.`,
      );
    }
  }
}

/** Whether a value has a reference to a secret, so that it is not known and cannot be compared. */
export const hasReference = (value: unknown): boolean =>
  typeof value === 'string'
    ? reference.test(value)
    : typeof value === 'object' && value !== null && Object.values(value).some(hasReference);

/** The value with what its references stand for. Throws CliError, without the secret, if there is none. */
export async function resolveReferences(value: unknown): Promise<unknown> {
  if (typeof value === 'string') {
    const [, source, name = ''] = reference.exec(value) ?? [];
    if (source === undefined) return value;
    const secret = source === 'env' ? variableOf(name) : (await readFile(name, 'utf8').catch(() => undefined))?.trim();
    if (secret !== undefined && secret !== '') return secret;
    throw new CliError(source === 'env' ? `The variable ${name} is not set.` : `${name} is empty or not readable.`, {
      hint: 'A record refers to it for a secret.',
    });
  }
  if (Array.isArray(value)) return await Promise.all(value.map(resolveReferences));
  if (!isObject(value)) return value;
  const members = await Promise.all(
    Object.entries(value).map(async ([name, member]) => [name, await resolveReferences(member)] as const),
  );
  return Object.fromEntries(members);
}
