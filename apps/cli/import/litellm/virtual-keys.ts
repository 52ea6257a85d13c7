import { canonicalHost, parseCustomHost } from '#libs/credentials/custom-host.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import {
  defaultCredential,
  liteLlmAddresses,
  liteLlmSettings,
  toSluiceAddress,
  type LiteLlmProvider,
  type LiteLlmSetting,
} from '#libs/providers/litellm-names.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { secretVariable, writeSpec } from '../../records/record-files.ts';
import type { RecordDocument } from './record-document.ts';
import type { SourceNode } from './source-node.ts';
import { parseReference, type Variables } from './variables.ts';

/** A secret that the file contains. `node` has it. */
type Literal = { literal: string; node: SourceNode };

type Credential = {
  provider: string;
  settings: Record<string, string>;
  customHost: string | null;
  /** References by member, and literal secrets, which have no reference yet. */
  secrets: Record<string, string | Literal>;
  /** What distinguishes it from other credentials of its provider, for its slug. */
  qualifier: string;
};

/** Finds a parameter of an entry, in the entry or in the stored credential that it names. */
export type FindParam = (param: string) => SourceNode;

const slugLengthMax = 60;
const settingLengthMax = 2_048;
/** Keys for servers that take any key. */
const placeholders =
  /^(?:none|null|empty|na|n\/a|dummy|fake(?:-key)?|any(?:thing)?|not-needed|no-key(?:-required)?|-)$/i;

/** The virtual keys of an import: one for each credential, however many entries use it. */
export class VirtualKeys {
  readonly #variables: Variables;
  readonly #slugs = new Map<string, string>();
  readonly #documents = new Map<string, RecordDocument>();

  constructor(variables: Variables) {
    this.#variables = variables;
  }

  documents(): RecordDocument[] {
    return [...this.#documents.values()];
  }

  /** The slug of the virtual key with this credential, which is created if it is new. */
  slug(credential: Credential): string {
    const { provider, settings, customHost, qualifier } = credential;
    const secrets = Object.entries(credential.secrets);
    const known = secrets.map(([member, secret]) => [member, typeof secret === 'string' ? secret : [secret.literal]]);
    const identity = JSON.stringify([provider, settings, customHost, known]);
    const slug = this.#slugs.get(identity) ?? this.#newSlug(provider, qualifier);
    this.#slugs.set(identity, slug);
    const references = secrets.map(([member, secret]): [string, string] => {
      if (typeof secret === 'string') return [member, secret];
      const variable = secretVariable('virtual_key', slug, member);
      secret.node.changed(
        `A literal secret. Records refer to it as ${variable}: set this variable for sluice apply. --apply uses the value here.`,
      );
      return [member, this.#variables.referToLiteral(variable, secret.literal)];
    });
    const plain = { name: slug, provider, ...(customHost === null ? {} : { custom_host: customHost }), ...settings };
    const spec = { ...writeSpec(plain), ...Object.fromEntries(references) };
    this.#documents.set(slug, { kind: 'virtual_key', slug, spec });
    return slug;
  }

  #newSlug(provider: string, qualifier: string): string {
    const base = [provider, ...(qualifier === '' ? [] : [qualifier])].join('-').slice(0, slugLengthMax);
    let slug = base;
    for (let number = 2; this.#documents.has(slug); number += 1) slug = `${base}-${number}`;
    return slug;
  }
}

/**
 * Reads the credential of an entry, with its address and settings. `remarks` get what comes from variables that the entry
 * does not name. Returns a text that says what is missing if the provider cannot be called with it.
 */
export function readCredential(
  named: LiteLlmProvider & { settings: Readonly<Record<string, string>> },
  pick: FindParam,
  variables: Variables,
  remarks: string[],
): Credential | { missing: string } {
  const address = readAddress(named, pick, variables, remarks);
  if (typeof address === 'string') return { missing: address };
  const credential: Credential = {
    provider: address?.provider ?? named.provider,
    settings: { ...named.settings, ...address?.settings },
    customHost: address?.customHost ?? null,
    secrets: {},
    qualifier: '',
  };
  const provider = findProvider(credential.provider);
  readSettings(credential, pick, variables, remarks);
  readKey(credential, pick, variables, provider?.needsCredential === true);
  if (Object.keys(credential.secrets).length === 0 && provider?.needsCredential === true) {
    const authenticates = Object.entries(provider.settings ?? {}).some(
      ([name, field]) => field.authenticates === true && credential.settings[name] !== undefined,
    );
    for (const [member, variable] of authenticates ? [] : Object.entries(defaultCredential(named))) {
      credential.secrets[member] = variables.refer(variable);
      remarks.push(`The credential is read from the variable ${variable}.`);
    }
  }
  const lacking = liteLlmSettings.find(
    ({ setting, neededFor }) =>
      neededFor !== undefined && neededFor in credential.secrets && credential.settings[setting] === undefined,
  );
  if (lacking !== undefined) return { missing: describeMissing(lacking, variables) };
  if (credential.customHost === null && provider !== undefined && provider.baseUrlOf(credential.settings) === null) {
    const setting = /\{(\w+)\}/.exec(provider.address ?? '')?.[1];
    const known = liteLlmSettings.find((each) => each.setting === setting);
    return { missing: describeMissing(known ?? { param: 'api_base', variables: [] }, variables) };
  }
  return { ...credential, qualifier: chooseQualifier(credential, pick('litellm_credential_name')) };
}

/** Says what an entry lacks. The variable that it could come from counts as missing. */
function describeMissing(
  { param, variables: [name] = [] }: Pick<LiteLlmSetting, 'param' | 'variables'>,
  variables: Variables,
): string {
  if (name !== undefined) variables.read(name);
  return `The entry has no usable ${param}. Add it${name === undefined ? '' : `, or set the variable ${name}`}, and run the import again.`;
}

/** The address of an entry; null for that of the provider. A text says what is wrong with it. */
function readAddress(named: LiteLlmProvider, pick: FindParam, variables: Variables, remarks: string[]) {
  const [node, ...ignored] = ['api_base', ...liteLlmAddresses].map(pick).filter((each) => each.isGiven);
  for (const each of ignored) each.unsupported('The entry has another address, which is used.');
  const text = node?.text() ?? (node === undefined ? findDefaultAddress(named, variables, remarks) : null);
  if (text === null) return node === undefined ? null : 'Its address cannot be read.';
  try {
    const address = toSluiceAddress(named, parseCustomHost(text, 'api_base'));
    const customHost =
      address.customHost === null ? null : canonicalHost(parseCustomHost(address.customHost, 'api_base'));
    const notes = [
      ...(address.note === null ? [] : [address.note]),
      ...(customHost !== null && isPrivate(new URL(customHost)) ? ['allow this address in SLUICE_EGRESS_ALLOW'] : []),
    ];
    node?.translated(notes.length === 0 ? null : `${notes.join('; ')}.`);
    return { ...address, customHost };
  } catch (error) {
    if (!(error instanceof GatewayError)) throw error;
    node?.unsupported('Expected an http or https URL without user, password, query and fragment.');
    return 'Its address is not usable.';
  }
}

function findDefaultAddress(
  { addressVariable }: LiteLlmProvider,
  variables: Variables,
  remarks: string[],
): string | null {
  const address = addressVariable === undefined ? undefined : variables.find(addressVariable);
  if (address === undefined) return null;
  remarks.push(`The address is the current value of the variable ${addressVariable}.`);
  return address;
}

/** Whether an address is on this machine or in a private network, as far as its text shows. */
const isPrivate = ({ hostname }: URL): boolean =>
  hostname === 'localhost' ||
  !hostname.includes('.') ||
  /\.(?:local|internal|svc|lan)$|^(?:0|10|127)\.|^192\.168\.|^172\.(?:1[6-9]|2\d|3[01])\./.test(hostname);

function readSettings(credential: Credential, pick: FindParam, variables: Variables, remarks: string[]): void {
  const known = findProvider(credential.provider)?.settings ?? {};
  for (const { param, setting, variables: names = [], isFile = false } of liteLlmSettings) {
    const node = pick(param);
    const field = known[setting];
    if (field === undefined || field.unused === true) {
      if (node.isGiven) node.unsupported('This provider has no such setting in Sluice.');
      continue;
    }
    if (field.secret === true) {
      if (!node.isGiven) continue;
      const secret = readSecret(node, variables, isFile);
      if (secret !== null) credential.secrets[setting] = secret;
      continue;
    }
    const variable = node.isGiven ? undefined : names.find((name) => variables.find(name));
    const value = variable === undefined ? node.text() : variables.find(variable);
    if (value === undefined || value === null || credential.settings[setting] !== undefined) continue;
    if (value.length > settingLengthMax) {
      node.unsupported(`A setting has at most ${settingLengthMax} characters.`);
      continue;
    }
    if (variable !== undefined) remarks.push(`${param} is the current value of the variable ${variable}.`);
    credential.settings[setting] = value;
    node.same();
  }
}

function readKey(credential: Credential, pick: FindParam, variables: Variables, needsCredential: boolean): void {
  const node = pick('api_key');
  if (!node.isGiven) return;
  if (!needsCredential && typeof node.value === 'string' && placeholders.test(node.value.trim())) {
    node.changed('Left out: it is a placeholder, and the server needs no key.');
    return;
  }
  const secret = readSecret(node, variables, false);
  if (secret !== null) credential.secrets['key'] = secret;
}

/** A secret as a reference, or as the literal that the file contains. */
function readSecret(node: SourceNode, variables: Variables, isFile: boolean): string | Literal | null {
  const { value } = node;
  const variable = parseReference(value);
  if (variable !== null) {
    node.translated(isFile ? `The variable ${variable} must contain the document itself, not its path.` : null);
    return variables.refer(variable);
  }
  const text = typeof value === 'string' ? value : value === undefined ? '' : JSON.stringify(value);
  if (text.trim() === '') {
    node.unsupported('Expected a credential.');
    return null;
  }
  // Other texts could be secrets, which must not be shown.
  if (isFile && /^[\w./~-]*(?:\/[\w.-]+|\.json)$/.test(text)) {
    node.changed('Read from this file when the records are applied, with --allow-files for its folder.');
    return `\${file:${text}}`;
  }
  return { literal: text, node };
}

/** Words of a variable's name that do not distinguish credentials. */
const commonWords = new Set([
  'api',
  'key',
  'keys',
  'secret',
  'access',
  'token',
  'bearer',
  'credentials',
  'client',
  'ad',
]);

function chooseQualifier({ provider, settings, customHost, secrets }: Credential, stored: SourceNode): string {
  const words = (text: string): string[] => text.toLowerCase().match(/[a-z0-9]+/g) ?? [];
  if (typeof stored.value === 'string') return words(stored.value).join('-');
  const place = customHost === null ? (findProvider(provider)?.address ?? '') : '';
  const inAddress = [...place.matchAll(/\{(\w+)\}/g)].map(([, name = '']) => settings[name] ?? '');
  const host = customHost === null ? [] : words(new URL(customHost).host);
  const [reference = ''] = Object.values(secrets).filter((secret) => typeof secret === 'string');
  const variable = /^\$\{env:(.+)\}$/.exec(reference)?.[1] ?? '';
  const own = words(variable.replaceAll('_', ' ')).filter(
    (word) =>
      !commonWords.has(word) && !words(provider).includes(word) && !/^(?:aws|azure|vertex|google)(?:ai)?$/.test(word),
  );
  const all = [...host, ...inAddress.flatMap(words)];
  return [...all, ...own.filter((word) => !all.includes(word))].join('-');
}
