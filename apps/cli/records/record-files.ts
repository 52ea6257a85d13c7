import { readdir, readFile, realpath, stat } from 'node:fs/promises';
import path from 'node:path';
import { CliError } from '../server/cli-error.ts';
import { variableOf } from '../server/config.ts';
import { unreadableFile } from '../terminal/file-problem.ts';
import { isObject, readDocuments } from './read-documents.ts';
import { appliedKinds, type RecordKind } from './record-kinds.ts';

/** A record as a file describes it. `name` is its slug, or its name if the kind has no slugs. */
export type WantedRecord = {
  kind: RecordKind;
  name: string;
  spec: Record<string, unknown>;
  file: string;
};

const filesMax = 2_000;
const secretBytesMax = 65_536;

/** A reference to a secret on the machine that applies the file. */
const reference = /^\$\{(env|file):([^}]+)\}$/;

/** The paths of members that hold secrets, by kind (`Applied` in libs/records/define-resource.ts). */
const secretPaths = new Map(
  appliedKinds.flatMap(({ kind, applied }) => (applied?.secrets ? [[kind, new RegExp(applied.secrets)] as const] : [])),
);

/** Whether the member at a path of a record is a secret that cannot be written into its file. */
export const isCredential = ({ kind, applied }: RecordKind, path: string): boolean =>
  applied?.areCredentials === true && secretPaths.get(kind)?.test(path) === true;

/** The variable that a file refers to for a secret whose value is not known to its writer. */
export const secretVariable = (kind: string, name: string, member: string): string =>
  `${kind}_${name}_${member}`.toUpperCase().replaceAll(/[^A-Z0-9]/g, '_');

/** A secret that is read when its record is applied. */
class SecretSource {
  readonly from: 'env' | 'file';
  readonly name: string;

  constructor(from: 'env' | 'file', name: string) {
    this.from = from;
    this.name = name;
  }
}

/**
 * The records that the files of a folder describe, in the order in which they are applied. Throws CliError for an invalid
 * document, two documents of the same record, or a literal secret.
 */
export async function readRecordFiles(folder: string): Promise<WantedRecord[]> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch((error: unknown) => {
    throw unreadableFile(folder, error);
  });
  const files = entries
    .filter((entry) => entry.isFile() && /\.(?:ya?ml|json)$/.test(entry.name) && !entry.name.startsWith('.'))
    .map((entry) => path.join(entry.parentPath, entry.name))
    .sort();
  if (files.length === 0) throw new CliError(`${folder} contains no record files (*.yaml, *.yml, *.json).`);
  if (files.length > filesMax) throw new CliError(`${folder} contains more than ${filesMax} record files.`);
  const documents: { document: unknown; file: string }[] = [];
  for (const file of files) for (const document of await readDocuments(file)) documents.push({ document, file });
  return toRecords(documents);
}

/** The records that documents describe, in the order in which they are applied. Throws CliError as `readRecordFiles` does. */
export function toRecords(documents: readonly { document: unknown; file: string }[]): WantedRecord[] {
  const records = documents.map(({ document, file }) => toRecord(document, file));
  const seen = new Map<string, string>();
  for (const record of records) {
    const before = seen.get(nameOf(record));
    if (before !== undefined)
      throw new CliError(`${nameOf(record)} is in both ${before} and ${record.file}. Remove one.`);
    seen.set(nameOf(record), record.file);
  }
  const rank = ({ kind }: WantedRecord): number => appliedKinds.indexOf(kind);
  return records.toSorted((a, b) => rank(a) - rank(b));
}

/** `config/support`: the name of a record in messages. */
export const nameOf = ({ kind, name }: Pick<WantedRecord, 'kind' | 'name'>): string => `${kind.kind}/${name}`;

function toRecord(document: unknown, file: string): WantedRecord {
  const wrong = (text: string): CliError =>
    new CliError(`${file}: ${text}`, {
      hint: 'A record has kind, slug (or name) and spec. For examples, run sluice export.',
    });
  if (!isObject(document)) throw wrong('a document must be an object.');
  const { kind: kindName, slug, name, spec, ...others } = document;
  const [other] = Object.keys(others);
  if (other !== undefined) throw wrong(`'${other}' is unknown. Put the members of the record into spec.`);
  const kind = appliedKinds.find((each) => each.kind === kindName);
  if (kind === undefined) {
    throw wrong(`kind must be one of ${appliedKinds.map((each) => each.kind).join(', ')}.`);
  }
  const given = kind.address === 'slug' ? slug : name;
  const label = kind.address === 'slug' ? 'slug' : 'name';
  if (typeof given !== 'string' || given === '') throw wrong(`a ${kind.kind} needs a ${label}.`);
  if (!isObject(spec)) throw wrong('spec must be an object.');
  const full = kind.address === 'slug' && typeof name === 'string' ? { name, ...spec } : spec;
  return { kind, name: given, spec: readSpec(kind, full, wrong), file };
}

/**
 * The members of a record's file, with references resolved to their sources in members that hold secrets, and unescaped text
 * elsewhere.
 * @testOnly
 */
export function readSpec(
  kind: RecordKind,
  spec: Record<string, unknown>,
  wrong: (text: string) => CliError = (text) => new CliError(text),
): Record<string, unknown> {
  const read = (value: unknown, at: string): unknown => {
    const isSecret = secretPaths.get(kind.kind)?.test(at) === true;
    const [, from, name = ''] = (typeof value === 'string' && reference.exec(value)) || [];
    if (isSecret && from !== undefined) return new SecretSource(from as SecretSource['from'], name);
    if (from !== undefined) {
      throw wrong(
        `${at} is not a secret, so it cannot be read from a variable or file. For a literal text, write $\${... instead.`,
      );
    }
    if (isCredential(kind, at) && value !== null) {
      throw wrong(`${at} is a secret and must be a reference: \${env:NAME} or \${file:/path}. It is read by apply.`);
    }
    return typeof value === 'string' ? value.replaceAll('$${', () => '${') : mapMembers(value, at, read);
  };
  return read(spec, '') as Record<string, unknown>;
}

/** The members of a record in the form for its file: the inverse of `readSpec`, for a record without secrets. */
export function writeSpec(spec: Record<string, unknown>): Record<string, unknown> {
  const write = (value: unknown, at: string): unknown =>
    typeof value === 'string' ? value.replaceAll('${', () => '$${') : mapMembers(value, at, write);
  return write(spec, '') as Record<string, unknown>;
}

/** Maps each member of a value. `at` is the path of the value; member names in it do not contain slashes. */
export function mapMembers(value: unknown, at: string, map: (member: unknown, at: string) => unknown): unknown {
  const below = (name: string | number): string => `${at === '' ? '' : `${at}/`}${encodeURIComponent(name)}`;
  if (Array.isArray(value)) return value.map((member, index) => map(member, below(index)));
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, map(member, below(name))]));
}

/** Whether a value contains a reference to a secret. Such a value is not known and cannot be compared. */
export const hasReference = (value: unknown): boolean =>
  value instanceof SecretSource ||
  (typeof value === 'object' && value !== null && Object.values(value).some(hasReference));

/** Where the secrets of records come from: variables, and files below `folders`. */
export type SecretSources = { folders: readonly string[]; variable?: (name: string) => string | undefined };

/** The value with its secrets. Throws CliError, without the secret, if one is missing. */
export async function resolveReferences(value: unknown, sources: SecretSources): Promise<unknown> {
  const { folders, variable = variableOf } = sources;
  if (value instanceof SecretSource) {
    const { from, name } = value;
    const secret = from === 'env' ? variable(name) : await readSecretFile(name, folders);
    if (secret !== undefined && secret !== '') return secret;
    throw new CliError(from === 'env' ? `The variable ${name} is not set.` : `${name} is empty or not readable.`, {
      hint: 'A record refers to it as a secret.',
    });
  }
  if (Array.isArray(value)) return await Promise.all(value.map((member) => resolveReferences(member, sources)));
  if (!isObject(value)) return value;
  const members = await Promise.all(
    Object.entries(value).map(async ([name, member]) => [name, await resolveReferences(member, sources)] as const),
  );
  return Object.fromEntries(members);
}

async function readSecretFile(name: string, folders: readonly string[]): Promise<string | undefined> {
  // The real path, because a folder of records can contain links.
  const file = await realpath(name).catch(() => undefined);
  if (file === undefined) return undefined;
  const allowed = await Promise.all(folders.map((folder) => realpath(folder).catch(() => null)));
  if (!allowed.some((folder) => folder !== null && isBelow(folder, file))) {
    throw new CliError(`A record refers to the file ${name}, which is not in an allowed folder.`, {
      hint: `Check the record. To allow it: --allow-files ${path.dirname(name)}`,
    });
  }
  const { size } = await stat(file);
  if (size > secretBytesMax) throw new CliError(`${name} is larger than 64 KiB, the maximum of a secret.`);
  return (await readFile(file, 'utf8').catch(() => undefined))?.trim();
}

function isBelow(folder: string, file: string): boolean {
  const relative = path.relative(folder, file);
  return relative !== '' && relative.split(path.sep)[0] !== '..' && !path.isAbsolute(relative);
}
