import type { Kysely } from 'kysely';
import type { PromptPins } from '#libs/calls/planned-call.ts';
import type { Database } from '#libs/database/schema.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { promptRequest } from '#libs/prompts/prompt-request.ts';
import { operationOf } from '#libs/prompts/prompt-template.ts';
import { createRenderer } from '#libs/prompts/render-template.ts';
import { labelKind, type LiveLabel } from '#libs/resources/prompts/labels.ts';
import { promptKind, type LivePrompt } from '#libs/resources/prompts/prompts.ts';
import { versionId } from '#libs/records/traits/versions.ts';
import type { Secrets } from '#libs/secrets/secrets.ts';
import type { KnownPrompt } from '#libs/validation/lines/check-prompt-line.ts';
import { createPromptFinder } from './find-prompts.ts';
import { createPromptVersions } from './prompt-versions.ts';
import { withRefresh, type Refreshable } from '#libs/identity/not-in-snapshot.ts';
import type { AccessSnapshot } from '#libs/snapshot/access-snapshot.ts';

export type PromptQuery = {
  workspaceId: string;
  /** `support`, `support@latest`, `support@12`, `support@production`. An ID can be used instead of the slug. */
  name: string;
  /** The name of that parameter in messages. */
  param: string;
  variables: Readonly<Record<string, unknown>>;
  /** Members of the request that replace those of the prompt. */
  hyperparameters: Readonly<Record<string, unknown>>;
};

/** A prompt as a request. */
export type RenderedPrompt = {
  operation: 'chat' | 'completions';
  /** Its model is the prompt's own or the caller's, or absent. */
  body: Record<string, unknown>;
  /** Slugs; null for none. */
  virtualKey: string | null;
  config: string | null;
  /** The version that was rendered. */
  prompt: { id: string; slug: string; version: number };
  /** Names in the template for which there is no variable. */
  missing: string[];
  /** The names among them without which no call is made. */
  missingRequired: string[];
};

export type Prompts = {
  /**
   * Renders a prompt with these variables. Versions that are in use or were used recently are in memory. Names in
   * `pins` refer to those versions. Throws not_found, and invalid_request for a prompt that cannot be rendered and for
   * missing required variables.
   */
  render(query: PromptQuery, pins?: PromptPins): Promise<RenderedPrompt>;
  /**
   * Renders a prompt without the intention to call: missing variables are left empty. Otherwise throws like `render`.
   */
  preview(query: PromptQuery): Promise<RenderedPrompt>;
  /** Returns the versions that these names refer to now, including those of the partials in them. Throws not_found. */
  pin(workspaceId: string, names: readonly string[], param: string): Promise<PromptPins>;
  /** The data of a workspace's prompts that is known before they are rendered, by slug and ID. */
  known(workspaceId: string): Promise<ReadonlyMap<string, KnownPrompt>>;
};

type Deps = {
  db: Kysely<Database>;
  secrets: Pick<Secrets, 'readOwned'>;
  snapshot: Refreshable & Pick<AccessSnapshot, 'live' | 'assertLoaded'>;
  limits: { outputCharsMax: number; cacheSizeMax: number };
};

/**
 * The body of a prompt's request. The model is prefixed with the prompt's virtual key, in the form that callers can
 * use: `@virtual-key/model`.
 */
export function bodyToSend({ body, virtualKey }: RenderedPrompt): Record<string, unknown> {
  const { model } = body;
  if (virtualKey === null || typeof model !== 'string' || model.startsWith('@')) return body;
  return { ...body, model: `@${virtualKey}/${model}` };
}

/** Renders prompts: for calls, batch lines, targets of configs and `render` alike. */
export function createPrompts({ db, secrets, snapshot, limits }: Deps): Prompts {
  const versions = createPromptVersions({ db, secrets, sizeMax: limits.cacheSizeMax });
  const { findPrompt, gatherPartials } = createPromptFinder(snapshot, versions);

  const render = async (query: PromptQuery, pins?: PromptPins): Promise<RenderedPrompt> => {
    const { workspaceId, variables, hyperparameters } = query;
    const { head, number } = findPrompt(query, pins);
    const { version, template } = await versions.prompt(head, number);
    const partials = await gatherPartials(workspaceId, template.partials, pins);
    const { operation } = template;
    const templates = new Map([...partials].map(([name, partial]) => [name, partial.template]));
    const renderer = createRenderer(variables, templates, limits);
    const content = template.render(renderer);
    return {
      operation,
      body: promptRequest(version, { operation, content }, hyperparameters),
      virtualKey: version.virtual_key,
      config: version.config,
      prompt: { id: head.id, slug: head.slug, version: number },
      missing: renderer.missing(),
      missingRequired: renderer.required(),
    };
  };

  return {
    render: async (query, pins) => refuseMissing(await withRefresh(snapshot, () => render(query, pins))),
    preview: async (query) => await withRefresh(snapshot, () => render(query)),
    async pin(workspaceId, names, param) {
      // Includes records that another process created a moment ago.
      await snapshot.refresh();
      const pins: PromptPins = { prompts: {}, partials: {} };
      for (const name of names) {
        const { head, number } = findPrompt({ workspaceId, name, param });
        pins.prompts[name] = versionId(head.id, number);
        const { template } = await versions.prompt(head, number);
        for (const [partial, found] of await gatherPartials(workspaceId, template.partials)) {
          pins.partials[partial] = found.version;
        }
      }
      return pins;
    },
    async known(workspaceId) {
      await snapshot.refresh();
      const labels = snapshot.live<LiveLabel>(labelKind).byId;
      const bySlug = new Map<string, KnownPrompt>();
      const byId = new Map<string, KnownPrompt>();
      for (const [slug, prompt] of snapshot.live<LivePrompt>(promptKind).bySlug.get(workspaceId) ?? []) {
        const names = Object.keys(prompt.labels).flatMap((id) => labels.get(id)?.name ?? []);
        const { lastVersion, data } = prompt;
        const entry = { lastVersion, labels: names, operation: operationOf(data.string) };
        bySlug.set(slug, entry);
        byId.set(prompt.id, entry);
      }
      return new Map([...bySlug, ...byId]);
    },
  };
}

/**
 * Returns a prompt that can be called. Throws invalid_request (`missing_variables`) for blanks, which would be paid for like the
 * text that should have been there.
 */
export function refuseMissing(rendered: RenderedPrompt): RenderedPrompt {
  const { missingRequired: names, prompt } = rendered;
  if (names.length === 0) return rendered;
  const message = `The prompt '${prompt.slug}' needs these variables: ${names.join(', ').slice(0, 1_000)}. Send them in 'variables'. Use null to leave a variable empty.`;
  throw new GatewayError('invalid_request', 'missing_variables', message, { param: `variables.${names[0]}` });
}
