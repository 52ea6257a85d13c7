import { isDeepStrictEqual } from 'node:util';
import type { UnitOfWork } from '#libs/event-log/event-log.ts';
import type { Caller } from '#libs/http/caller.ts';
import type { AnyResource } from './define-resource.ts';
import type { Checked, StoreDeps } from './kit.ts';
import { asJson, type ResourceEvent, type ResourceRow } from './resource-row.ts';
import { createSecretStore } from './traits/secrets.ts';
import { freeSlug, slugPlace } from './traits/slugs.ts';
import { requireVersion, versionMember } from './traits/versions.ts';

/**
 * Checks changes to the records of one kind, encrypts their secrets, and returns their events. The record's stream is locked,
 * and `unit` is the transaction that appends the events.
 */
export function createResourceEvents<Data extends object>(definition: AnyResource, deps: StoreDeps) {
  const { noun, versions, removal } = definition;
  const secrets = createSecretStore(definition, deps.secrets);
  const numberMember = versionMember(definition);

  const check = async (
    unit: UnitOfWork,
    input: Record<string, unknown>,
    record: { workspaceId: string; caller: Caller; row: ResourceRow<Data> | null },
  ): Promise<Checked<Data>> => {
    const { row } = record;
    const readSecrets = async () => (row === null ? {} : await secrets.read(unit.tx, row));
    const { open, given } = secrets.split(input);
    const checked: Checked<Data> = definition.check
      ? await definition.check(open, { ...deps, unit, ...record, readSecrets })
      : { data: asJson(open) as Partial<Data> };
    if (Object.keys(given).length === 0) return checked;
    // Storing secrets again is how an operator replaces those that can no longer be decrypted.
    return { ...checked, secrets: { ...(await readSecrets()), ...given } };
  };

  return {
    async creation(
      unit: UnitOfWork,
      { id, owner, caller }: { id: string; owner: string; caller: Caller },
      { slug: wanted, ...input }: Record<string, unknown>,
    ): Promise<{ events: ResourceEvent[]; shownOnce: Record<string, string> }> {
      const checked = await check(unit, input, { workspaceId: owner, caller, row: null });
      const names = { slug: wanted as string | undefined, name: (input['name'] as string | undefined) ?? '' };
      const { place } = slugPlace(definition, owner);
      const slug = definition.slugs ? { slug: await freeSlug(unit, place, names) } : {};
      const numbers = { before: null, now: versions ? 1 : null };
      const sealed =
        checked.secrets || definition.secrets
          ? await secrets.replace(unit, { id, workspace_id: owner }, checked.secrets ?? {}, numbers)
          : {};
      const number = versions ? { [numberMember]: 1 } : {};
      const data = { ...slug, ...checked.data, ...sealed, ...number, created_by: caller.principal.id };
      return { events: [{ type: `${noun}.created`, data }], shownOnce: checked.shownOnce ?? {} };
    },

    async update(
      unit: UnitOfWork,
      row: ResourceRow<Data>,
      caller: Caller,
      input: Record<string, unknown>,
    ): Promise<ResourceEvent[]> {
      const checked = await check(unit, input, { workspaceId: row.workspace_id, caller, row });
      const { last_version: before } = row;
      const last =
        versions?.publish === 'on_request' ? (await requireVersion(definition, unit.tx, row, before ?? 1)).data : {};
      const newest = { ...row.data, ...last } as Record<string, unknown>;
      const isNewer = ([member, value]: [string, unknown]): boolean => !isDeepStrictEqual(value, newest[member]);
      const data: Record<string, unknown> = Object.fromEntries(Object.entries(checked.data).filter(isNewer));
      const fields = versions?.fields ?? [];
      const isVersion = fields.some((field: string) => field in data) || (versions && checked.secrets) !== undefined;
      const now = isVersion ? (before ?? 0) + 1 : before;
      if (checked.secrets) Object.assign(data, await secrets.replace(unit, row, checked.secrets, { before, now }));
      if (versions && isVersion) {
        const whole = Object.entries({ ...newest, ...checked.data }).filter(([field]) => fields.includes(field));
        Object.assign(data, Object.fromEntries(whole), { [numberMember]: now });
      }
      if (Object.keys(data).length === 0) return [];
      return [{ type: `${noun}.updated`, data: { ...data, updated_by: caller.principal.id } }];
    },

    async publication(unit: UnitOfWork, row: ResourceRow<Data>, number: number): Promise<ResourceEvent[]> {
      if ((row.data as Record<string, unknown>)[numberMember] === number) return [];
      const { data } = await requireVersion(definition, unit.tx, row, number);
      return [{ type: `${noun}.version_published`, data: { ...data, [numberMember]: number } }];
    },

    async removal(unit: UnitOfWork, row: ResourceRow<Data>): Promise<ResourceEvent[]> {
      await secrets.removeAll(unit, row);
      return [{ type: `${noun}.${(removal && removal.verb) || 'deleted'}`, data: {} }];
    },
  };
}
