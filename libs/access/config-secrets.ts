import { configSecretNames } from '#libs/contracts/config.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/secret.ts';

type Document = Record<string, unknown>;
type Path = readonly (string | number)[];

const secretNames: ReadonlySet<string> = new Set(configSecretNames);
const guardrailLists = ['input_guardrails', 'output_guardrails', 'before_request_hooks', 'after_request_hooks'];
// Header names of a webhook under which people put credentials.
const credentialHeader = /auth|key|token|secret|cookie|password|signature/i;

/**
 * Refuses a config that is to be stored with a credential in it: it would be in the event log, readable and for good.
 * Throws invalid_request with the member at fault. `document` was accepted by `ConfigInput`.
 */
export function refuseSecrets(document: Document, param: string): void {
  for (const { path, value } of secretsIn(document)) {
    if (path.at(-1) === 'headers' && !credentialHeader.test(headerNames(value))) continue;
    const at = path.reduce<string>((text, step) => text + (typeof step === 'number' ? `[${step}]` : `.${step}`), param);
    throw new GatewayError(
      'invalid_request',
      'secret_in_config',
      `Invalid '${at}': a stored config holds no credentials. Store it in a virtual key (POST /v1/virtual-keys) and name ` +
        'that key as virtual_key.',
      { param: at },
    );
  }
}

/** Whether there is a credential in a config, or a webhook's header that may be one. */
export const holdsSecrets = (document: Document): boolean => secretsIn(document).length > 0;

/**
 * A config without its credentials, and these by where they were; `joinSecrets` puts them back. The headers of webhooks
 * count as credentials whole.
 */
export function splitSecrets(document: Document): { document: Document; secrets: Record<string, Secret> } {
  const open = structuredClone(document);
  const secrets: Record<string, Secret> = {};
  for (const { path, value } of secretsIn(open)) {
    secrets[JSON.stringify(path)] = new Secret(JSON.stringify(value));
    Reflect.deleteProperty(parentOf(open, path), path.at(-1) as string);
  }
  return { document: open, secrets };
}

export function joinSecrets(document: Document, secrets: Readonly<Record<string, Secret>>): Document {
  const whole = structuredClone(document);
  for (const [place, secret] of Object.entries(secrets)) {
    const path = JSON.parse(place) as Path;
    Object.assign(parentOf(whole, path), { [path.at(-1) as string]: JSON.parse(secret.reveal()) as unknown });
  }
  return whole;
}

function parentOf(document: Document, path: Path): object {
  return path
    .slice(0, -1)
    .reduce<object>((node, step) => (node as Record<string | number, object>)[step] as object, document);
}

/** Collected whole, because the caller may remove what it finds. */
function secretsIn(document: Document): { path: Path; value: unknown }[] {
  const found: { path: Path; value: unknown }[] = [];
  const visit = (node: Document, path: Path): void => {
    for (const [name, value] of Object.entries(node)) {
      if (secretNames.has(name) && typeof value === 'string') found.push({ path: [...path, name], value });
      if (guardrailLists.includes(name)) collectHeaders(value, [...path, name], found);
    }
    if (Array.isArray(node['targets'])) {
      for (const [index, target] of node['targets'].entries()) visit(target as Document, [...path, 'targets', index]);
    }
  };
  visit(document, []);
  return found;
}

/** Wherever a guardrail has `headers`: in both of its forms. */
function collectHeaders(value: unknown, path: Path, found: { path: Path; value: unknown }[]): void {
  if (typeof value !== 'object' || value === null) return;
  const entries = Array.isArray(value) ? [...value.entries()] : Object.entries(value);
  for (const [name, child] of entries as [string | number, unknown][]) {
    if (name === 'headers') found.push({ path: [...path, name], value: child });
    // The schema of a check is the author's own text, in which a member may have any name.
    else if (name !== 'schema') collectHeaders(child, [...path, name], found);
  }
}

function headerNames(headers: unknown): string {
  if (typeof headers === 'string') return headers;
  return typeof headers === 'object' && headers !== null ? Object.keys(headers).join(' ') : '';
}
