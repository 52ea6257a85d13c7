import { isStorable } from '#libs/contracts/scalars.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { SecretOwner, Secrets } from '#libs/secrets/secrets.ts';
import { refuseCredentials, splitSecrets } from './config-secrets.ts';
import { parseConfigText, readConfig } from './read-config.ts';

export type Document = Record<string, unknown>;

/**
 * Checks a config that will be stored, or another document with the same members, and returns it as its author wrote
 * it. `param` is its name in error messages; `checkDestination` throws for a URL that could never be called. Throws
 * invalid_request.
 */
export function readDocument(given: string | object, param: string, checkDestination: (url: URL) => void): Document {
  const document = typeof given === 'string' ? parseConfigText(given, param) : given;
  readConfig(document, param, checkDestination);
  refuseCredentials(document as Document, param);
  refuseUnstorable(document, param);
  // Converted to the form in which the log returns it: no undefined members, no prototypes.
  return JSON.parse(JSON.stringify(document)) as Document;
}

/** Encrypts the secrets of a document and returns the rest, which the log stores. */
export async function storeDocumentSecrets(
  secrets: Secrets,
  unit: UnitOfWork,
  owner: SecretOwner,
  document: Document,
): Promise<Document> {
  const { document: open, secrets: members } = splitSecrets(document);
  if (Object.keys(members).length > 0) await secrets.store(unit, owner, members);
  return open;
}

/** Throws invalid_request for a config that the log cannot store: one with U+0000 or a lone surrogate in any text. */
export function refuseUnstorable(document: unknown, param: string): void {
  JSON.stringify(document, (name, value: unknown) => {
    if (isStorable(name) && (typeof value !== 'string' || isStorable(value))) return value;
    const message = `Invalid '${param}': expected only well-formed Unicode text without the character U+0000.`;
    throw new GatewayError('invalid_request', 'invalid_value', message, { param });
  });
}
