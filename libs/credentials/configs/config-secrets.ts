import { configSecretNames } from '#libs/contracts/configs/config.ts';
import { hasCredentialName } from '#libs/kernel/logging/credential-shapes.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { Secret } from '#libs/kernel/logging/secret.ts';

type Document = Record<string, unknown>;
type Path = readonly (string | number)[];

/** A secret in a config; `shown` replaces it in answers. */
type Found = { path: Path; value: unknown; shown: unknown; isCredential: boolean };

const redacted = '[redacted]';

const credentialNames: ReadonlySet<string> = new Set(configSecretNames);
export const guardrailLists = ['input_guardrails', 'output_guardrails', 'before_request_hooks', 'after_request_hooks'];
/** A pattern of the members of a webhook's parameters that hold secrets. */
export const webhookMember = '(?:webhookURL|headers|headers/[^/]+)';
// The lists of parameters of configs and prompts.
const paramLists = ['default_params', 'override_params', 'parameters', 'tools'];
/**
 * Refuses to store a config that contains a provider's credential. Such credentials belong in virtual keys, which can
 * be changed and revoked separately. Other secrets are encrypted (`splitSecrets`). Also refuses the placeholder that
 * answers show instead of a secret. Throws invalid_request with the member at fault. `document` was accepted by
 * `ConfigInput`.
 */
export function refuseCredentials(document: Document, param: string): void {
  for (const { path, value, shown, isCredential } of secretsIn(document)) {
    const name = path.reduce<string>(
      (text, step) => text + (typeof step === 'number' ? `[${step}]` : `.${step}`),
      param,
    );
    const at = name.replace(/^\./, '');
    if (isCredential) {
      throw new GatewayError(
        'invalid_request',
        'secret_in_config',
        `Invalid '${at}': a stored config must not contain credentials. Store the credential in a virtual key (POST /v1/virtual-keys) and set virtual_key to its slug.`,
        { param: at },
      );
    }
    if (value === shown) {
      const message = `Invalid '${at}': ${redacted} is the placeholder of a stored secret. Send the secret itself.`;
      throw new GatewayError('invalid_request', 'invalid_value', message, { param: at });
    }
  }
}

/** Whether a config contains a credential or another secret. */
export const containsSecrets = (document: Document): boolean => secretsIn(document).length > 0;

/**
 * Splits a config into the part that can be stored and shown, and its secrets by their location; `joinSecrets` reverses
 * this. Secrets are credentials, the headers of webhooks, their addresses except for the host, and members of
 * parameters that have the name of a secret, or are headers, or addresses with a user or a query.
 */
export function splitSecrets<Whole extends Document>(
  document: Whole,
): { document: Whole; secrets: Record<string, Secret> } {
  const found = secretsIn(document);
  // Copying a large document takes milliseconds.
  const open = found.length === 0 ? document : structuredClone(document);
  const secrets: Record<string, Secret> = {};
  for (const { path, value, shown } of found) {
    secrets[JSON.stringify(path)] = new Secret(JSON.stringify(value));
    put(open, path, shown);
  }
  return { document: open, secrets };
}

/**
 * Returns a config in the form that can be shown, even if one of its secrets was not recognised as such when it was
 * stored.
 */
export const redactSecrets = <Whole extends Document>(document: Whole): Whole => splitSecrets(document).document;

/** Puts secrets back into a config; null when one of its secrets is missing. */
export function joinSecrets<Whole extends Document>(
  document: Whole,
  secrets: Readonly<Record<string, Secret>>,
): Whole | null {
  const found = Object.entries(secrets);
  const whole = found.length === 0 ? document : structuredClone(document);
  for (const [path, secret] of found) put(whole, JSON.parse(path) as Path, JSON.parse(secret.reveal()));
  return secretsIn(whole).some(({ value, shown }) => value === shown) ? null : whole;
}

function put(document: Document, path: Path, value: unknown): void {
  const parent = path
    .slice(0, -1)
    .reduce<object>((node, step) => (node as Record<string | number, object>)[step] as object, document);
  Object.assign(parent, { [path.at(-1) as string]: value });
}

/** The list is complete before it is returned, because the caller can replace its entries. */
function secretsIn(document: Document): Found[] {
  const found: Found[] = [];
  const visit = (node: Document, path: Path): void => {
    for (const [name, value] of Object.entries(node)) {
      const at = [...path, name];
      if (credentialNames.has(name) && typeof value === 'string') {
        found.push({ path: at, value, shown: redacted, isCredential: true });
      }
      if (guardrailLists.includes(name)) collectWebhooks(value, at, found);
      if (paramLists.includes(name)) collectParams(value, at, found);
    }
    if (Array.isArray(node['targets'])) {
      for (const [index, target] of node['targets'].entries()) visit(target as Document, [...path, 'targets', index]);
    }
  };
  visit(document, []);
  return found;
}

function entriesOf(value: unknown): [string | number, unknown][] {
  if (typeof value !== 'object' || value === null) return [];
  return Array.isArray(value) ? [...value.entries()] : Object.entries(value);
}

const secret = (path: Path, value: unknown, shown: unknown): Found => ({ path, value, shown, isCredential: false });

/** Finds webhooks wherever a guardrail has them, in both of its forms. */
function collectWebhooks(value: unknown, path: Path, found: Found[]): void {
  for (const [name, child] of entriesOf(value)) {
    const at = [...path, name];
    if (name === 'webhookURL') collectWebhookUrl(child, at, found);
    else if (name === 'jwksUri') collectUrl(child, at, found);
    else if (name === 'headers') collectHeaders(child, at, found);
    // The schema of a check is the author's own text, in which a member can have any name.
    else if (name !== 'schema') collectWebhooks(child, at, found);
  }
}

/** The headers are an object, or an object as JSON text. Their names are not secret. */
function collectHeaders(value: unknown, path: Path, found: Found[]): void {
  if (typeof value === 'string') return void found.push(secret(path, value, redactedJson(value)));
  for (const [name, child] of entriesOf(value)) {
    if (typeof child === 'string') found.push(secret([...path, name], child, redacted));
  }
}

function redactedJson(text: string): string {
  try {
    const names = Object.keys(JSON.parse(text) as object);
    return JSON.stringify(Object.fromEntries(names.map((name) => [name, redacted])));
  } catch {
    return redacted;
  }
}

function collectParams(value: unknown, path: Path, found: Found[]): void {
  for (const [name, child] of entriesOf(value)) {
    const at = [...path, name];
    if (name === 'headers') collectHeaders(child, at, found);
    else if (typeof child !== 'string') collectParams(child, at, found);
    else if (hasCredentialName(String(name))) {
      found.push(secret(at, child, redacted));
    } else if (looksLikeUrl.test(child)) collectUrl(child, at, found);
  }
}

/**
 * A parameter can be a text that only begins with an address. A webhook's address is anything that can be called,
 * including blanks.
 */
const looksLikeUrl = /^\s*https?:\/\/\S*[?@#]/i;

/** Everything after the host is secret: Slack, Discord and Teams have their secrets in the path. */
function collectWebhookUrl(value: unknown, path: Path, found: Found[]): void {
  if (typeof value !== 'string' || !URL.canParse(value)) return;
  const { origin, href } = new URL(value);
  if (href !== `${origin}/`) found.push(secret(path, value, `${origin}/${redacted}`));
}

/** The user and everything after the path are secret, because tokens are passed in both. */
function collectUrl(value: unknown, path: Path, found: Found[]): void {
  if (typeof value !== 'string' || !URL.canParse(value)) return;
  const { origin, pathname, search, hash, username, password } = new URL(value);
  if (search + hash + username + password === '') return;
  found.push(secret(path, value, `${origin}${pathname}?${redacted}`));
}
