import type { Kysely } from 'kysely';
import { LRUCache } from 'lru-cache';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { compileTemplate, type Template } from '#libs/prompts/compile-template.ts';
import { compilePrompt, type PromptTemplate } from '#libs/prompts/prompt-template.ts';
import type { PartialData } from '#libs/resources/prompts/prompt-partials.ts';
import type { PromptVersion } from '#libs/resources/prompts/prompts.ts';
import { SecretUnreadableError, type Secrets } from '#libs/secrets/secrets.ts';
import { versionId } from '#libs/records/traits/versions.ts';
import { joinSecrets } from '#libs/credentials/configs/config-secrets.ts';
import { readVersion } from '#libs/records/traits/versions.ts';

/** A version of a prompt, ready to be rendered. It never changes. */
export type CompiledPrompt = { version: PromptVersion; template: PromptTemplate };

/** A record with versions, and the content of its version in use, if that is known. */
type Head<Data> = { id: string; workspaceId: string; version: number; data?: Data };

export type PromptVersions = {
  /** Reads the database only for a version that is neither in use nor cached. Throws not_found. */
  prompt(head: Head<PromptVersion>, number: number): Promise<CompiledPrompt>;
  partial(head: Head<Pick<PartialData, 'string'>>, number: number): Promise<Template>;
};

type Deps = { db: Kysely<Database>; secrets: Pick<Secrets, 'readOwned'>; sizeMax: number };

/**
 * Caches compiled versions of prompts and partials, limited by the size of their JSON. The least recently used are
 * removed.
 */
export function createPromptVersions({ db, secrets, sizeMax }: Deps): PromptVersions {
  const kept = new LRUCache<string, CompiledPrompt | Template>({ maxSize: sizeMax });
  const reading = new Map<string, Promise<CompiledPrompt | Template>>();

  async function versionOf<Data extends Record<string, unknown>, Compiled extends CompiledPrompt | Template>(
    { id, workspaceId, version, data }: Head<Data>,
    number: number,
    compile: (data: Data) => Compiled,
  ): Promise<Compiled> {
    const key = versionId(id, number);
    const known = kept.get(key);
    if (known !== undefined) return known as Compiled;
    const keep = (source: Data): Compiled => {
      const compiled = compile(source);
      kept.set(key, compiled, { size: JSON.stringify(source).length });
      return compiled;
    };
    if (number === version && data !== undefined && joinSecrets(data, {}) !== null) return keep(data);
    const underWay = reading.get(key);
    if (underWay !== undefined) return (await underWay) as Compiled;
    const read = readVersion(db, { workspaceId, id, number }).then(async (found) => {
      if (found === undefined) throw noSuchVersion(key);
      return keep((await withSecrets(found.data, workspaceId, key)) as Data);
    });
    reading.set(key, read);
    return await read.finally(() => reading.delete(key));
  }

  async function withSecrets(source: Record<string, unknown>, workspaceId: string, id: string): Promise<object> {
    if (joinSecrets(source, {}) !== null) return source;
    const stored = await secrets.readOwned(db, { workspaceId, ownerId: id }).catch((error: unknown) => {
      if (error instanceof SecretUnreadableError) return undefined;
      throw error;
    });
    const whole = joinSecrets(source, stored ?? {});
    if (whole !== null) return whole;
    const message = `The secrets of the prompt version '${id}' cannot be read. Save the prompt again with its secrets.`;
    throw new GatewayError('dependency_failed', 'prompt_secrets_unreadable', message, { param: 'prompt_id' });
  }

  return {
    prompt: (head, number) =>
      versionOf(head, number, (version) => ({ version, template: compilePrompt(version.string) })),
    partial: (head, number) => versionOf(head, number, ({ string }) => compileTemplate(string, 'string')),
  };
}

const noSuchVersion = (id: string): GatewayError =>
  new GatewayError('not_found', 'prompt_version_not_found', `There is no version '${id}'.`, { param: 'prompt_id' });
