import type { PromptPins } from '#libs/calls/planned-call.ts';
import { organisationId } from '#libs/http/caller.ts';
import { NotInSnapshot } from '#libs/identity/not-in-snapshot.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { Template } from '#libs/prompts/compile-template.ts';
import { labelKind, type LiveLabel } from '#libs/resources/prompts/labels.ts';
import { findLive } from '#libs/records/find-by-name.ts';
import { partialKind, type LivePartial } from '#libs/resources/prompts/prompt-partials.ts';
import { promptKind, type LivePrompt, type PromptVersion } from '#libs/resources/prompts/prompts.ts';
import { versionId } from '#libs/records/traits/versions.ts';
import type { AccessSnapshot } from '#libs/snapshot/access-snapshot.ts';
import type { PromptVersions } from './prompt-versions.ts';

/** The partials of one prompt, including those inside other partials. */
const partialsMax = 100;

/**
 * Finds prompts and partials by `slug`, `slug@latest`, `slug@12` or `slug@label`. An ID can be used instead of the
 * slug.
 */
export function createPromptFinder(snapshot: Pick<AccessSnapshot, 'live' | 'assertLoaded'>, versions: PromptVersions) {
  /** Throws not_found. */
  const findPrompt = (
    { workspaceId, name, param }: { workspaceId: string; name: string; param: string },
    pins?: PromptPins,
  ): { head: PromptHead; number: number } => {
    snapshot.assertLoaded(workspaceId);
    const { base, which } = partsOf(name);
    const head = findLive(snapshot.live<LivePrompt>(promptKind), [workspaceId], base);
    const pinned = pins?.prompts[name];
    if (pinned !== undefined) return atVersion(head ?? { workspaceId, slug: base, version: 0 }, pinned);
    const number = head && (asNumber(head, which) ?? labelled(head, workspaceId, which));
    if (head && typeof number === 'number') return { head, number };
    const message = `There is no prompt '${name.slice(0, 200)}'. GET /v1/prompts lists the prompts that you can use.`;
    throw new NotInSnapshot('not_found', 'prompt_not_found', message, { param });
  };

  const labelled = ({ labels }: LivePrompt, workspaceId: string, name = ''): number | null => {
    if (Object.keys(labels).length === 0) return null;
    const found = [...snapshot.live<LiveLabel>(labelKind).byId.values()].filter((label) => label.name === name);
    const own = found.find((label) => label.workspaceId === workspaceId);
    const { id } = own ?? found.find((label) => label.workspaceId === organisationId) ?? { id: '' };
    return labels[id] ?? null;
  };

  const findPartial = (
    workspaceId: string,
    name: string,
    pins?: PromptPins,
  ): { template: Promise<Template>; version: string } => {
    const { base, which } = partsOf(name);
    const head = findLive(snapshot.live<LivePartial>(partialKind), [workspaceId], base);
    const pinned = pins?.partials[name];
    const found =
      pinned === undefined
        ? { head, number: head && asNumber(head, which) }
        : atVersion<PartialHead>(head ?? { workspaceId, version: 0 }, pinned);
    if (found.head && typeof found.number === 'number') {
      const version = versionId(found.head.id, found.number);
      return { template: versions.partial(found.head, found.number), version };
    }
    const message = `The prompt includes the partial '${name.slice(0, 200)}', which does not exist in this workspace.`;
    throw new NotInSnapshot('not_found', 'prompt_partial_not_found', message);
  };

  /** Returns the partials of these names and those inside them. Throws not_found. */
  const gatherPartials = async (
    workspaceId: string,
    names: readonly string[],
    pins?: PromptPins,
  ): Promise<Map<string, { template: Template; version: string }>> => {
    const found = new Map<string, { template: Template; version: string }>();
    const waiting = [...names];
    for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
      if (found.has(name)) continue;
      if (found.size === partialsMax) throw tooManyPartials();
      const { template, version } = findPartial(workspaceId, name, pins);
      const read = await template;
      found.set(name, { template: read, version });
      waiting.push(...read.partials);
    }
    return found;
  };

  return { findPrompt, gatherPartials };
}

/** The current record, or the known part of a deleted one; version 0 means none. */
type PromptHead = Pick<LivePrompt, 'id' | 'workspaceId' | 'slug' | 'version'> & { data?: PromptVersion };
type PartialHead = Pick<LivePartial, 'id' | 'workspaceId' | 'version'> & { data?: LivePartial['data'] };

/** The record of a pinned version. The name can belong to another record now. */
function atVersion<Head extends { id: string; version: number }>(
  known: Omit<Head, 'id'> & { id?: string },
  pinned: string,
): { head: Head; number: number } {
  const at = pinned.lastIndexOf('@');
  const id = pinned.slice(0, at);
  const isSame = known.id === id;
  const head = { ...known, id, version: isSame ? known.version : 0 } as unknown as Head;
  return { head, number: Number(pinned.slice(at + 1)) };
}

function partsOf(name: string): { base: string; which: string | undefined } {
  const at = name.indexOf('@');
  return at < 0 ? { base: name, which: undefined } : { base: name.slice(0, at), which: name.slice(at + 1) };
}

/** null: neither a version number nor `latest`. */
function asNumber(
  { version, lastVersion }: { version: number; lastVersion: number },
  which: string | undefined,
): number | null {
  if (which === undefined) return version;
  if (which === 'latest') return lastVersion;
  const number = /^\d{1,9}$/.test(which) ? Number(which) : 0;
  return number > 0 && number <= lastVersion ? number : null;
}

const tooManyPartials = (): GatewayError =>
  new GatewayError(
    'invalid_request',
    'too_many_partials',
    `A prompt can include at most ${partialsMax} partials in total.`,
  );
